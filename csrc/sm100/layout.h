// The operands' layout in memory: docs/sm100.md states it, tests hold it against CuTe's.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define JAX_W4A8_HOST_DEVICE __host__ __device__
#else
#define JAX_W4A8_HOST_DEVICE
#endif

namespace jax_w4a8::sm100 {

constexpr int kScaleBlock = 32;      // elements along K that share a scale in the kernels
constexpr int kTileK = 128;          // K of every kernel's tile; K is padded to a multiple
constexpr int kScaleTileRows = 128;  // rows of one tile of scales
constexpr int kScaleTileBytes = kScaleTileRows * kTileK / kScaleBlock;
constexpr int kScaleOne = 127;      // the UE8M0 byte of 1
constexpr int kColumnMultiple = 8;  // N is padded to it: rows of y start on 16 bytes

template <class Integer>
JAX_W4A8_HOST_DEVICE constexpr Integer ceil_div(Integer a, Integer b) {
  return (a + b - 1) / b;
}

template <class Integer>
JAX_W4A8_HOST_DEVICE constexpr Integer round_up(Integer a, Integer b) {
  return ceil_div(a, b) * b;
}

// Bytes of the swizzled scales of a [rows, k] operand; k is a multiple of kTileK.
JAX_W4A8_HOST_DEVICE constexpr int64_t scale_bytes(int64_t rows, int64_t k) {
  return ceil_div<int64_t>(rows, kScaleTileRows) * (k / kTileK) * kScaleTileBytes;
}

// Where the four scales of row `row` for K in [128 * unit, 128 * unit + 128) start; `units` is
// k / kTileK. A tile of 128 rows and 4 scales is 512 bytes: rows r, r + 32, r + 64 and r + 96
// share 16 of them.
JAX_W4A8_HOST_DEVICE constexpr int64_t scale_offset(int64_t row, int unit, int units) {
  const int r = static_cast<int>(row % kScaleTileRows);
  return (row / kScaleTileRows * units + unit) * kScaleTileBytes + r % 32 * 16 + r / 32 * 4;
}

// One group of a grouped or masked product: its rows of x and y, and its first tile of scales.
struct Group {
  int32_t first_row;
  int32_t rows;
  int32_t first_tile;
};

}  // namespace jax_w4a8::sm100
