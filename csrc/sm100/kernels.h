// Every kernel that is built: one file of csrc/sm100/kernels each.
#pragma once

#include <vector>

#include "csrc/sm100/kernel.h"

namespace jax_w4a8::sm100 {

extern const Kernel dense_128x128_bf16, dense_128x128_f16, dense_128x128_f32;
extern const Kernel dense_128x256_bf16, dense_128x256_f16, dense_128x256_f32;
extern const Kernel dense_256x256_bf16, dense_256x256_f16, dense_256x256_f32;
extern const Kernel dense_swap_128x64_bf16, dense_swap_128x64_f16, dense_swap_128x64_f32;
extern const Kernel dense_swap_128x128_bf16, dense_swap_128x128_f16, dense_swap_128x128_f32;
extern const Kernel grouped_128x128_bf16, grouped_128x128_f16, grouped_128x128_f32;
extern const Kernel grouped_swap_128x64_bf16, grouped_swap_128x64_f16, grouped_swap_128x64_f32;

const std::vector<const Kernel*>& kernels();

// The kernel for a tile and a result type.
const Kernel& find_kernel(const Tile& tile, Out out);

}  // namespace jax_w4a8::sm100
