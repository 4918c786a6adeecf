#include "csrc/sm90/kernels.h"

#include <stdexcept>
#include <string>

namespace jax_w4a8::sm90 {

const std::vector<const Kernel*>& kernels() {
  static const auto* const all = new std::vector<const Kernel*>{
      &tile_16x64,      &tile_32x64,      &tile_64x64,        &tile_128x128,
      &tile_16x64_fine, &tile_64x64_fine, &tile_128x128_fine,
  };
  return *all;
}

const Kernel& find_kernel(const Tile& tile) {
  for (const Kernel* kernel : kernels()) {
    if (kernel->tile.name == tile.name) return *kernel;
  }
  throw std::logic_error("jax_w4a8: no sm90 kernel is built for the tile " +
                         std::string(tile.name));
}

}  // namespace jax_w4a8::sm90
