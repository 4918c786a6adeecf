#include "csrc/sm90/describe.cuh"

namespace jax_w4a8::sm90 {

const Kernel tile_64x64 = describe<Config<64, 1, 2, false>>(k64x64);

}  // namespace jax_w4a8::sm90
