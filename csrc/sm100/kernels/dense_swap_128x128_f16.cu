#include "csrc/sm100/dense.cuh"

namespace jax_w4a8::sm100 {

const Kernel dense_swap_128x128_f16 = describe<Dense, F16, kDenseSwap128x128>();

}  // namespace jax_w4a8::sm100
