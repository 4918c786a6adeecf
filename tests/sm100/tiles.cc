// The tile choice and the scratch layout, which need no CUDA, callable from Python.
#include "csrc/sm100/tile.h"
#include "csrc/sm100/workspace.h"

using namespace jax_w4a8::sm100;

extern "C" {

int tile_count() { return static_cast<int>(kTiles.size()); }
const char* tile_name(int index) { return kTiles[index].name.data(); }
int tile_rows(int index) { return kTiles[index].rows(); }
int tile_columns(int index) { return kTiles[index].columns(); }

const char* choose(int64_t m, int64_t n, int64_t k, int64_t groups, int grouped, int sm_count) {
  return choose_tile({m, n, k, groups, grouped != 0}, sm_count).name.data();
}

int64_t clocks(int index, int64_t m, int64_t n, int64_t k, int64_t groups, int sm_count) {
  const Tile& tile = kTiles[index];
  return expected_clocks(tile, {m, n, k, groups, tile.grouped}, sm_count);
}

int64_t workspace(int64_t m, int64_t k, int64_t groups, int masked) {
  return Workspace(m, k, groups, masked != 0).bytes;
}
}
