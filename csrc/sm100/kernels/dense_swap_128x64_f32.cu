#include "csrc/sm100/dense.cuh"

namespace jax_w4a8::sm100 {

const Kernel dense_swap_128x64_f32 = describe<Dense, F32, kDenseSwap128x64>();

}  // namespace jax_w4a8::sm100
