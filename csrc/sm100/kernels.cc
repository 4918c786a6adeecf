#include "csrc/sm100/kernels.h"

#include <stdexcept>
#include <string>

namespace jax_w4a8::sm100 {

const std::vector<const Kernel*>& kernels() {
  static const auto* const all = new std::vector<const Kernel*>{
      &dense_128x128_bf16,       &dense_128x128_f16,       &dense_128x128_f32,
      &dense_128x256_bf16,       &dense_128x256_f16,       &dense_128x256_f32,
      &dense_256x256_bf16,       &dense_256x256_f16,       &dense_256x256_f32,
      &dense_swap_128x64_bf16,   &dense_swap_128x64_f16,   &dense_swap_128x64_f32,
      &dense_swap_128x128_bf16,  &dense_swap_128x128_f16,  &dense_swap_128x128_f32,
      &grouped_128x128_bf16,     &grouped_128x128_f16,     &grouped_128x128_f32,
      &grouped_swap_128x64_bf16, &grouped_swap_128x64_f16, &grouped_swap_128x64_f32,
  };
  return *all;
}

const Kernel& find_kernel(const Tile& tile, Out out) {
  for (const Kernel* kernel : kernels()) {
    if (kernel->tile == tile && kernel->out == out) return *kernel;
  }
  throw std::logic_error("jax_w4a8: no kernel for the tile " + std::string(tile.name));
}

}  // namespace jax_w4a8::sm100
