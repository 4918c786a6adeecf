#include <algorithm>
#include <limits>

#include "csrc/sm90/layout.h"
#include "csrc/sm90/tile.h"

namespace jax_w4a8::sm90 {
namespace {

// In clocks of an SM, measured on an H200 as docs/sm90.md tells. A launch; a tile's end, beside its
// units of weights; and a block that shares its tile, which is launched for it alone.
constexpr int64_t kLaunch = 6500, kTileEnd = 1000, kSharedTile = 10500;
// Bytes from memory a clock, of all SMs together.
constexpr int64_t kMemoryBytes = 2300;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t clocks(const Tile& tile, int split, const Extent& e, int sm_count) {
  const int64_t units = ceil_div(ceil_div(e.k, kUnitK), split * tile.slices) * tile.slices;
  const int64_t blocks =
      e.groups * ceil_div(e.m, tile.tokens) * ceil_div(e.n, tile.columns()) * split;
  const int64_t waves = ceil_div(blocks, sm_count);
  const int64_t busy = waves * units * tile.row_tiles * tile.unit_clocks;
  const int64_t ends = split > 1 ? waves * kSharedTile : waves * kTileEnd + kLaunch;
  const int64_t memory = e.groups * e.n * e.k * 17 / 32 / kMemoryBytes;
  return std::max(busy, memory) + ends;
}

}  // namespace

int choose_split(const Tile& tile, const Extent& e, int sm_count) {
  int best = 1;
  for (int split : {2, 4, 8}) {
    if (!e.may_split || 4 * tile.row_tiles % split != 0) break;
    if (split * tile.slices > ceil_div(e.k, kUnitK)) break;
    if (clocks(tile, split, e, sm_count) < clocks(tile, best, e, sm_count)) best = split;
  }
  return best;
}

Choice choose_tile(const Extent& e, int sm_count) {
  Choice best = {nullptr, 1};
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Tile& tile : kTiles) {
    if (tile.fine != e.fine) continue;
    const int split = choose_split(tile, e, sm_count);
    const int64_t expected = clocks(tile, split, e, sm_count);
    if (expected < least) best = {&tile, split}, least = expected;
  }
  return best;
}

}  // namespace jax_w4a8::sm90
