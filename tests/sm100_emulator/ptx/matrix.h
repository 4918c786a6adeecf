// An operand of a tensor core in shared memory: the canonical K-major layouts, PTX ISA sections
// 9.7.15.5.1 and 9.7.16.5.2.
#pragma once

#include <cstdint>

namespace ptx {

struct Matrix {
  uint32_t start, leading, stride;
  int swizzle;  // bits of the address that are exchanged: 0, or 1 to 3 for 32 to 128 bytes

  // What both generations' descriptors have in the same place.
  Matrix(uint64_t descriptor, int swizzle_bits)
      : start((descriptor & 0x3FFF) << 4),
        leading((descriptor >> 16 & 0x3FFF) << 4),
        stride((descriptor >> 32 & 0x3FFF) << 4),
        swizzle(swizzle_bits) {}

  // Offset of byte `b` of 32 along K in row `r`.
  uint32_t offset(int r, int b) const {
    if (swizzle == 0) return start + r % 8 * 16 + r / 8 * stride + b / 16 * leading + b % 16;
    const uint32_t linear = start + r % 8 * (16u << swizzle) + r / 8 * stride + b;
    return linear ^ (linear >> 7 & ((1u << swizzle) - 1)) << 4;
  }
};

}  // namespace ptx
