// What one launch of the product kernel is told.
#pragma once

#include <cstdint>

namespace jax_w4a8::sm90 {

enum class Kind : int { kDense, kGrouped, kMasked };
enum class Out : int { kBf16, kF16, kF32 };

struct Params {
  const uint8_t* x_codes;   // E4M3 [x_rows, k]
  const uint8_t* x_scales;  // UE8M0 [x_rows, x_blocks]
  const int32_t* sizes;     // [groups]; unused when dense
  const uint8_t* units;     // [groups, row_tiles, k_units, kUnitBytes]
  const uint8_t* tops;      // [groups, row_tiles, 64]: each row's largest exponent byte
  const uint8_t* kinds;     // [groups, row_tiles]: TileKind
  void* y;                  // [x_rows, n]

  Kind kind;
  Out out;
  int x_rows;     // M, or groups * M when masked
  int m;          // rows of x, or of each group when masked
  int n;          // width of the result
  int k;          // length of a row of x_codes, a multiple of 16
  int groups;     // 1 when dense
  int block;      // 128, 32, or 0 for one scale a row
  int x_blocks;   // scales a row
  int row_tiles;  // tiles of 64 rows in a weight
  int k_units;    // units of 128 along K

  int stages;  // pipeline stages that fit in shared memory
  int split;   // blocks of a cluster that share one tile's K
  int band;    // token tiles that are swept together over the rows
};

}  // namespace jax_w4a8::sm90
