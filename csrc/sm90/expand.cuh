// E2M1 codes to E4M3 operands: byte permutes into a table of the eight magnitudes.
//
// The table of one (row, group of 32) holds E2M1 * 2^r in E4M3, which is exact for r in -8..6, so
// the group's exponent costs two integer multiply-adds and no multiplication of the sums.
#pragma once

#include <cstdint>

#include "csrc/sm90/layout.h"

namespace jax_w4a8::sm90 {

struct Table {
  uint32_t low, high;  // E4M3 bytes of the magnitudes 0, .5, 1, 1.5 and 2, 3, 4, 6
};

// The table for an index 3..14 (r = index - 8): every non-zero byte moves by 8 an exponent.
__device__ inline Table table(uint32_t index) {
  return {index * 0x08080800u + 0xFBF7F000u, index * 0x08080808u + 0x0C080400u};
}

// The same for 0..14: below 3 the magnitudes reach into E4M3's subnormals.
__device__ inline Table any_table(uint32_t index) {
  Table t = table(index);
  if (index < 3) t.low = 0x03020100u << index;
  if (index == 0) t.high |= 0x0204u;
  return t;
}

// __byte_perm without the mask that it puts on the selector: bit 3 of each nibble is 0 here.
__device__ inline uint32_t look_up(Table t, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(t.low), "r"(t.high), "r"(selector));
  return bytes;
}

constexpr uint32_t kPlainIndex = 8;  // r = 0

// Eight codes of one row (two runs of four k) to two registers of the A operand. Magnitudes lie in
// bits 0..2 of each nibble; bit 3 of an odd nibble is the sign of a byte of the first run, of an
// even nibble of the second.
__device__ inline void expand(uint32_t word, Table t, uint32_t& first, uint32_t& second) {
  constexpr uint32_t kMagnitudes = 0x77777777u, kSigns = 0x80808080u;
  const uint32_t selector = word & kMagnitudes;
  first = look_up(t, selector) | (word & kSigns);
  second = look_up(t, selector >> 16) | ((word << 4) & kSigns);
}

__device__ inline uint32_t byte_of(uint32_t word, int i) {
  return __byte_perm(word, 0, 0x4440 | i);
}

// One thread's share of a unit: A operands of the four k-steps of 32.
struct Codes {
  uint4 half[2];    // words [k-step of the half][row]
  uint2 exponents;  // a byte a group: row 2g, row 2g + 1
};

template <bool kSubnormals>
__device__ inline void expand_unit(const Codes& codes, uint32_t (&a)[16]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint4 w = codes.half[step / 2];
    const uint32_t words[2] = {step % 2 ? w.z : w.x, step % 2 ? w.w : w.y};
    const uint32_t rows[2] = {codes.exponents.x, codes.exponents.y};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t index = byte_of(rows[r], step);
      const Table t = kSubnormals ? any_table(index & ~kSubnormalMark) : table(index);
      expand(words[r], t, a[4 * step + r], a[4 * step + 2 + r]);
    }
  }
}

__device__ inline void expand_folded(const Codes& codes, uint32_t (&a)[16]) {
  constexpr uint32_t kMarks = kSubnormalMark * 0x01010101u;
  if (__builtin_expect(((codes.exponents.x | codes.exponents.y) & kMarks) != 0, 0)) {
    expand_unit<true>(codes, a);
  } else {
    expand_unit<false>(codes, a);
  }
}

}  // namespace jax_w4a8::sm90
