#include "csrc/sm100/dense.cuh"

namespace jax_w4a8::sm100 {

const Kernel dense_256x256_f32 = describe<Dense, F32, kDense256x256>();

}  // namespace jax_w4a8::sm100
