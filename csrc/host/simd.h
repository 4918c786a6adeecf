// Vectors of the widest float registers of the instruction set that this is compiled for, and the
// decoding of E2M1. Included by kernels.cc alone, inside a namespace of that instruction set's own.

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#define JAX_W4A8_SHIFTS 0, 0, 0, 0, 8, 8, 8, 8, 16, 16, 16, 16, 24, 24, 24, 24
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#define JAX_W4A8_SHIFTS 0, 0, 0, 0, 8, 8, 8, 8
#else
inline constexpr int kLanes = 4;
#define JAX_W4A8_SHIFTS 0, 0, 0, 0
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef double Doubles __attribute__((vector_size(8 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Bits __attribute__((vector_size(4 * kLanes)));

// Where the scale of each lane's block is among the bytes of its chunk's scales, in bits.
static const Bits kShiftOfLane = {JAX_W4A8_SHIFTS};
#undef JAX_W4A8_SHIFTS

template <typename V>
inline V load(const void* from) {
  V vector;
  __builtin_memcpy(&vector, from, sizeof(V));
  return vector;
}

template <typename V>
inline void store(void* to, V vector) {
  __builtin_memcpy(to, &vector, sizeof(V));
}

// The values of nibble `index` of every lane.
inline Floats decode_nibbles(Bits packed, int index) {
#if defined(__AVX512F__)
  const Floats values = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
  // The look-up uses the low four bits of each lane alone.
  return (Floats)_mm512_permutexvar_ps((__m512i)(packed >> (4 * index)), (__m512)values);
#elif defined(__AVX2__)
  const Floats magnitudes = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
  const Bits magnitude =
      (Bits)_mm256_permutevar8x32_ps((__m256)magnitudes, (__m256i)(packed >> (4 * index)));
  return (Floats)(magnitude | ((packed << (28 - 4 * index)) & 0x80000000u));
#else
  // Steps 2 to 7 are a float32 with its exponent moved; 0 and 1 lack the implicit bit.
  const Bits step = (packed >> (4 * index)) & 7;
  const Floats moved = (Floats)((step << 22) + (126u << 23));
  const Bits small = (Bits)(step < 2);
  const Bits magnitude = ((Bits)((moved - .5f) * 2) & small) | ((Bits)moved & ~small);
  return (Floats)(magnitude | ((packed << (28 - 4 * index)) & 0x80000000u));
#endif
}

inline float sum(const Floats& vector) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)vector);
#elif defined(__AVX2__)
  const __m128 four =
      _mm256_castps256_ps128((__m256)vector) + _mm256_extractf128_ps((__m256)vector, 1);
  return (four[0] + four[1]) + (four[2] + four[3]);
#else
  return (vector[0] + vector[1]) + (vector[2] + vector[3]);
#endif
}

inline double sum(const Doubles& vector) {
  double lanes[kLanes];
  __builtin_memcpy(lanes, &vector, sizeof(lanes));
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// sums += parts * factors
inline void add_scaled(Floats& sums, const Floats& parts, const Floats& factors) {
  sums += parts * factors;
}

inline void add_scaled(Doubles& sums, const Floats& parts, const Floats& factors) {
  sums += __builtin_convertvector(parts * factors, Doubles);
}
