// The shapes of tile that there are kernels for, and which of them a product takes: plain C++, free
// of CUDA.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace jax_w4a8::sm90 {

// The part of y that a thread block computes at a time: `tokens` rows of y by `row_tiles` * 64
// columns. `slices` warpgroups share the K of each 64 columns. A fine tile promotes its sums every
// 32 of K, for activation blocks of 32.
struct Tile {
  std::string_view name;
  int tokens;
  int row_tiles;
  int slices;
  bool fine;
  int unit_clocks;  // of an SM, for 64 columns by 128 of K: measured on an H200, docs/sm90.md

  constexpr int columns() const { return 64 * row_tiles; }
};

inline constexpr Tile k16x64 = {"16x64", 16, 1, 4, false, 372};
inline constexpr Tile k32x64 = {"32x64", 32, 1, 4, false, 390};
inline constexpr Tile k64x64 = {"64x64", 64, 1, 2, false, 505};
inline constexpr Tile k128x128 = {"128x128", 128, 2, 1, false, 641};
inline constexpr Tile k16x64Fine = {"16x64_fine", 16, 1, 4, true, 440};
inline constexpr Tile k64x64Fine = {"64x64_fine", 64, 1, 2, true, 945};
inline constexpr Tile k128x128Fine = {"128x128_fine", 128, 2, 1, true, 1220};

inline constexpr std::array kTiles = {
    k16x64, k32x64, k64x64, k128x128, k16x64Fine, k64x64Fine, k128x128Fine,
};

// What a product asks of its tiles. In a grouped or masked one `m` is the rows of each group, as
// far as the host knows: their average, or the most that there may be.
struct Extent {
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t groups;  // 1 when dense
  bool fine;       // activation blocks of 32
  bool may_split;  // thread blocks may share the K of one tile
};

struct Choice {
  const Tile* tile;
  int split;  // thread blocks of a cluster that share the K of one tile
};

// The tile and the split that are expected to be the fastest on `sm_count` SMs. docs/sm90.md
// explains the model.
Choice choose_tile(const Extent& extent, int sm_count);

// The best split of a tile that is given.
int choose_split(const Tile& tile, const Extent& extent, int sm_count);

}  // namespace jax_w4a8::sm90
