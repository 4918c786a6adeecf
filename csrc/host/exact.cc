#include <cmath>

#include "csrc/host/kernels.h"

namespace jax_w4a8::host {
namespace {

double decode_e4m3(uint8_t code) {
  const int magnitude = code & 0x7f;
  if (magnitude == 0x7f) return NAN;
  const double value =
      magnitude < 8 ? std::ldexp(magnitude, -9) : std::ldexp(8 + magnitude % 8, magnitude / 8 - 10);
  return code & 0x80 ? -value : value;
}

double decode_ue8m0(uint8_t scale) { return scale == 255 ? NAN : std::ldexp(1.0, scale - 127); }

}  // namespace

double exact_dot(XRow x, const uint8_t* codes, const uint8_t* scales, const Shape& shape) {
  static constexpr double kE2m1[16] = {0,   .5,  1,  1.5,  2,  3,  4,  6,
                                       -0., -.5, -1, -1.5, -2, -3, -4, -6};
  double total = 0;
  for (int64_t begin = 0; begin < shape.k; begin += 32) {
    const int64_t end = begin + 32 < shape.k ? begin + 32 : shape.k;
    double part = 0;
    for (int64_t k = begin; k < end; ++k) {
      part += decode_e4m3(x.codes[k]) * kE2m1[codes[k / 2] >> 4 * (k % 2) & 15];
    }
    const uint8_t x_scale = x.scales[shape.block == 0 ? 0 : begin / shape.block];
    total += part * decode_ue8m0(x_scale) * decode_ue8m0(scales[begin / 32]);
  }
  return total;
}

}  // namespace jax_w4a8::host
