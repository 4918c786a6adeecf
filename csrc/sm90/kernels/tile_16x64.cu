#include "csrc/sm90/describe.cuh"

namespace jax_w4a8::sm90 {

const Kernel tile_16x64 = describe<Config<16, 1, 4, false>>(k16x64);

}  // namespace jax_w4a8::sm90
