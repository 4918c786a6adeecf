// Single numbers of the formats, on their bits: no result depends on whether the thread flushes
// subnormals. Included by kernels.cc inside the namespace of one instruction set, since inline
// functions of several must not merge.

inline uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

// 2^exponent for exponents of normal numbers.
inline float power_of_two(int32_t exponent) { return float_of((uint32_t)(exponent + 127) << 23); }

inline double power_of_two_double(int64_t exponent) {
  const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
  double value;
  __builtin_memcpy(&value, &bits, 8);
  return value;
}

// The float32 bits of a float16, whose subnormals are normal there.
inline uint32_t bits_of_half(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return sign | 0x7f800000 | (magnitude & 0x3ff) << 13;
  if (magnitude >= 0x400) return sign | (magnitude + (112 << 10)) << 13;
  return sign | bits_of((float)(int32_t)magnitude * 0x1p-24f);
}

inline uint16_t to_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Round to nearest even, infinity past the largest float16.
inline uint16_t to_float16(float value) {
  const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  // Half has the ulp of float16's subnormals: the sum rounds to them.
  if (magnitude < 0x38800000)
    return (uint16_t)(sign | (bits_of(float_of(magnitude) + .5f) - bits_of(.5f)));
  return (uint16_t)(sign | (((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112 << 10)));
}

inline float decode_e4m3(uint8_t code) {
  const uint32_t sign = (uint32_t)(code & 0x80) << 24, magnitude = code & 0x7f;
  if (magnitude == 0x7f) return float_of(sign | 0x7fc00000);
  if (magnitude < 8) return float_of(sign | bits_of((float)(int32_t)magnitude * 0x1p-9f));
  return float_of(sign | (magnitude + (120 << 3)) << 20);
}
