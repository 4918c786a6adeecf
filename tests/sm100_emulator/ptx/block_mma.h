// The arithmetic of one tcgen05.mma of kind mxf8f6f4 along K = 32, PTX ISA section 9.7.16.10.9:
// codes in, the bits of float32 accumulators in and out.
#pragma once

#include <cstdint>

namespace ptx {

constexpr int kMmaK = 32;

// Formats of the instruction descriptor (table 44 of the ISA) that are in use here.
enum class Format { kE4M3 = 0, kE2M1 = 5 };

// 32 codes and their scale as whole numbers times powers of two.
struct ScaledRow {
  int32_t mantissa[kMmaK];
  int32_t exponent[kMmaK];  // of the leading bit of a normal number, the scale's included
  bool nan;
  bool defined;
};

ScaledRow expand(const uint8_t* codes, Format format, uint8_t scale);

// accumulator + the dot product. The exponent of the largest term, by the exponents of its factors,
// fixes a window of 25 fraction bits; every term is cut off there towards zero, and so is the sum
// when it becomes a float32.
uint32_t multiply_accumulate(const ScaledRow& a, Format a_format, const ScaledRow& b,
                             Format b_format, uint32_t accumulator);

}  // namespace ptx
