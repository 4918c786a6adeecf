#include "csrc/sm90/describe.cuh"

namespace jax_w4a8::sm90 {

const Kernel tile_16x64_fine = describe<Config<16, 1, 4, true>>(k16x64Fine);

}  // namespace jax_w4a8::sm90
