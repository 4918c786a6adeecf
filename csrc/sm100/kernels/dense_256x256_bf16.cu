#include "csrc/sm100/dense.cuh"

namespace jax_w4a8::sm100 {

const Kernel dense_256x256_bf16 = describe<Dense, Bf16, kDense256x256>();

}  // namespace jax_w4a8::sm100
