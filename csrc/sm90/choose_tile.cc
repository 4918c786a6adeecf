#include <algorithm>
#include <limits>

#include "csrc/sm90/layout.h"
#include "csrc/sm90/tile.h"

namespace jax_w4a8::sm90 {
namespace {

// Clocks of one SM. A warpgroup expands a unit of weights (64 x 128) in kExpand, promotes the sums
// of two tokens in one, and the tensor cores multiply kMacs pairs a clock.
constexpr int64_t kExpand = 150;
constexpr int64_t kMacs = 4096;
// Bytes from memory a clock, of all SMs together.
constexpr int64_t kMemoryBytes = 2300;
// Filling the pipeline, storing a tile; a split adds its reduction.
constexpr int64_t kTileEnds = 1200, kReduction = 600;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool allows(const Tile& tile, int split, int64_t units) {
  return 4 * tile.row_tiles % split == 0 &&
         split * tile.slices <= std::max<int64_t>(units, tile.slices);
}

int64_t clocks(const Tile& tile, int split, const Extent& e, int sm_count) {
  const int64_t units = ceil_div(e.k, kUnitK);
  const int64_t blocks =
      e.groups * ceil_div(e.m, tile.tokens) * ceil_div(e.n, tile.columns()) * split;
  const int64_t waves = ceil_div(blocks, sm_count);
  const int64_t promotions = tile.fine ? kUnitGroups : 1;
  const int64_t issue = tile.row_tiles * (kExpand + promotions * tile.tokens / 2);
  const int64_t mma = tile.row_tiles * 64 * tile.tokens * kUnitK / kMacs;
  // The slices' units are worked on side by side, and share the schedulers.
  const int64_t busy =
      ceil_div(ceil_div(units, split), tile.slices) * tile.slices * std::max(issue, mma);
  const int64_t memory = e.groups * e.n * e.k * 17 / 32 / kMemoryBytes;
  const int64_t ends = waves * (kTileEnds + (split > 1 ? kReduction : 0));
  return std::max(waves * busy, memory) + ends;
}

}  // namespace

int choose_split(const Tile& tile, const Extent& e, int sm_count) {
  int best = 1;
  for (int split : {2, 4, 8}) {
    if (!allows(tile, split, ceil_div(e.k, kUnitK))) continue;
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
