#include "csrc/sm100/grouped.cuh"

namespace jax_w4a8::sm100 {

const Kernel grouped_swap_128x64_bf16 = describe<Grouped, Bf16, kGroupedSwap128x64>();

}  // namespace jax_w4a8::sm100
