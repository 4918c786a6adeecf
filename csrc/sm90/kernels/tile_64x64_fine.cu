#include "csrc/sm90/describe.cuh"

namespace jax_w4a8::sm90 {

const Kernel tile_64x64_fine = describe<Config<64, 1, 2, true>>(k64x64Fine);

}  // namespace jax_w4a8::sm90
