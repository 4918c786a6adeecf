#include <algorithm>
#include <limits>

#include "csrc/sm100/layout.h"
#include "csrc/sm100/tile.h"

namespace jax_w4a8::sm100 {
namespace {

// What one SM does in a clock, and all of them together; rows and bytes of E4M3, packed E2M1.
constexpr int64_t kMacs = 8192;
constexpr int64_t kSharedBytes = 128;
constexpr int64_t kL2Bytes = 64;
constexpr int64_t kMemoryBytes = 4300;
// Filling the pipeline of the first tile and storing the last one.
constexpr int64_t kEnds = 2000;

// Between two tiles of one price the earlier is taken: the smaller, and with many rows the one that
// reads less.
constexpr std::array kPreference = {
    kDenseSwap128x64, kDenseSwap128x128,  kDense128x128,   kDense256x256,
    kDense128x256,    kGroupedSwap128x64, kGrouped128x128,
};

int64_t waves(const Tile& tile, const Extent& e, int sm_count) {
  const int64_t tiles =
      e.groups * ceil_div<int64_t>(e.m, tile.rows()) * ceil_div<int64_t>(e.n, tile.columns());
  return ceil_div<int64_t>(tiles, std::max(sm_count / tile.sms(), 1));
}

// Clocks of one SM for kTileK of one tile: the slowest of multiplying, of reading the operands from
// shared memory, where E2M1 takes a byte, and of bringing them there. Rows that x does not have are
// multiplied but not brought.
int64_t clocks_per_step(const Tile& tile, const Extent& e) {
  const int64_t a = tile.mma_m / tile.sms(), b = tile.mma_n / tile.sms();
  const int64_t rows = std::min<int64_t>(e.m, tile.rows());
  const int64_t brought = (rows * kTileK + tile.columns() * kTileK / 2) / tile.sms();
  return std::max({a * tile.mma_n * kTileK / kMacs, (a + b) * kTileK / kSharedBytes,
                   ceil_div(brought, kL2Bytes)});
}

int64_t busy_clocks(const Tile& tile, const Extent& e, int sm_count) {
  const int64_t steps = ceil_div<int64_t>(e.k, kTileK);
  return waves(tile, e, sm_count) * steps * clocks_per_step(tile, e);
}

}  // namespace

const Tile& choose_tile(const Extent& extent, int sm_count) {
  const Tile* best = nullptr;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Tile& tile : kPreference) {
    if (tile.grouped != extent.grouped) continue;
    const int64_t clocks = busy_clocks(tile, extent, sm_count);
    if (clocks < least) best = &tile, least = clocks;
  }
  return *best;
}

int64_t expected_clocks(const Tile& tile, const Extent& e, int sm_count) {
  const int64_t x = e.m * e.k * 33 / 32, w = e.n * e.k * 17 / 32, y = 2 * e.m * e.n;
  const int64_t memory = e.groups * (x + w + y) / kMemoryBytes;
  return std::max(busy_clocks(tile, e, sm_count), memory) + kEnds;
}

}  // namespace jax_w4a8::sm100
