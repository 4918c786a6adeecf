// The kernels that are built, one for each tile.
#pragma once

#include <vector>

#include "csrc/sm90/tile.h"

namespace jax_w4a8::sm90 {

struct Kernel {
  Tile tile;
  const void* function;  // of (CUtensorMap, Params)
  int threads;
  int stage_bytes;  // shared memory of a pipeline stage, and beside the stages
  int fixed_bytes;
  int most_stages;
};

extern const Kernel tile_16x64;
extern const Kernel tile_32x64;
extern const Kernel tile_64x64;
extern const Kernel tile_128x128;
extern const Kernel tile_16x64_fine;
extern const Kernel tile_64x64_fine;
extern const Kernel tile_128x128_fine;

const std::vector<const Kernel*>& kernels();
const Kernel& find_kernel(const Tile& tile);

}  // namespace jax_w4a8::sm90
