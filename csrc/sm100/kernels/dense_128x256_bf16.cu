#include "csrc/sm100/dense.cuh"

namespace jax_w4a8::sm100 {

const Kernel dense_128x256_bf16 = describe<Dense, Bf16, kDense128x256>();

}  // namespace jax_w4a8::sm100
