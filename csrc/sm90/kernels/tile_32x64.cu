#include "csrc/sm90/describe.cuh"

namespace jax_w4a8::sm90 {

const Kernel tile_32x64 = describe<Config<32, 1, 4, false>>(k32x64);

}  // namespace jax_w4a8::sm90
