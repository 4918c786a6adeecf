#include "block_mma.h"

#include <algorithm>
#include <cstdlib>

namespace ptx {
namespace {

constexpr int kWindow = 25;  // fraction bits
constexpr uint32_t kNan = 0x7FFFFFFF, kInfinity = 0x7F800000, kSign = 0x80000000;
constexpr int kFraction = 23, kBias = 127;
constexpr int kNothing = -(1 << 20);  // exponent of a sum without terms

int fraction_bits(Format format) { return format == Format::kE4M3 ? 3 : 1; }

// Towards zero; a left shift never loses a bit here.
int64_t shift(int64_t value, int by) {
  if (by >= 0) return value * (int64_t{1} << by);
  if (by < -62) return 0;
  return value < 0 ? -(-value >> -by) : value >> -by;
}

// sum * 2^exponent as the bits of a float32, cut off towards zero.
uint32_t to_float(int64_t sum, int exponent) {
  if (sum == 0) return 0;
  const uint32_t sign = sum < 0 ? kSign : 0;
  const auto magnitude = static_cast<uint64_t>(std::llabs(sum));
  const int leading = 63 - __builtin_clzll(magnitude);
  const int biased = std::max(leading + exponent + kBias, 1);
  if (biased >= 255) return sign | kInfinity;
  // The unit of the last place is 2^(biased - bias - 23).
  const auto digits = static_cast<uint32_t>(
      shift(static_cast<int64_t>(magnitude), exponent - (biased - kBias - kFraction)));
  if (digits == 0) return 0;
  const bool subnormal = digits >> kFraction == 0;
  return sign |
         (subnormal ? digits : static_cast<uint32_t>(biased) << kFraction | (digits & 0x7FFFFF));
}

}  // namespace

ScaledRow expand(const uint8_t* codes, Format format, uint8_t scale) {
  ScaledRow row = {};
  row.nan = scale == 255;
  row.defined = true;
  const bool e4m3 = format == Format::kE4M3;
  const int fraction = fraction_bits(format), bias = e4m3 ? 7 : 1, sign = e4m3 ? 7 : 3;
  for (int k = 0; k < kMmaK; ++k) {
    const int code = codes[k], field = (code & ((1 << sign) - 1)) >> fraction;
    int mantissa = code & ((1 << fraction) - 1);
    if (e4m3 && (code & 0x7F) == 0x7F) row.nan = true;
    if (field != 0) mantissa |= 1 << fraction;
    row.mantissa[k] = code >> sign & 1 ? -mantissa : mantissa;
    row.exponent[k] = std::max(field, 1) - bias + scale - kBias;
  }
  return row;
}

uint32_t multiply_accumulate(const ScaledRow& a, Format a_format, const ScaledRow& b,
                             Format b_format, uint32_t accumulator) {
  const int field = accumulator >> kFraction & 255;
  if (a.nan || b.nan || (field == 255 && (accumulator & 0x7FFFFF) != 0)) return kNan;
  if (field == 255) return accumulator;
  int32_t product[kMmaK], exponent[kMmaK];
  int largest = kNothing;
  for (int k = 0; k < kMmaK; ++k) {
    product[k] = a.mantissa[k] * b.mantissa[k];
    exponent[k] = product[k] == 0 ? kNothing : a.exponent[k] + b.exponent[k];
    largest = std::max(largest, exponent[k]);
  }
  int64_t carried = (accumulator & 0x7FFFFF) | (field != 0 ? 1 << kFraction : 0);
  const int carried_exponent = std::max(field, 1) - kBias;
  if (carried != 0) largest = std::max(largest, carried_exponent);
  if (accumulator & kSign) carried = -carried;
  int64_t sum = shift(carried, kWindow - kFraction + carried_exponent - largest);
  // Products have 6 bits and move up by 21 at most, so that 16 of them fit 32 bits. No branches:
  // this is where the emulator spends its time.
  const int up = kWindow - fraction_bits(a_format) - fraction_bits(b_format);
  for (int half = 0; half < kMmaK; half += kMmaK / 2) {
    int32_t part = 0;
    for (int k = half; k < half + kMmaK / 2; ++k) {
      const int by = up + exponent[k] - largest;
      const auto magnitude = static_cast<uint32_t>(std::abs(product[k]));
      const auto moved =
          static_cast<int32_t>(magnitude << std::max(by, 0) >> std::min(std::max(-by, 0), 31));
      part += product[k] < 0 ? -moved : moved;
    }
    sum += part;
  }
  return to_float(sum, largest - kWindow);
}

}  // namespace ptx
