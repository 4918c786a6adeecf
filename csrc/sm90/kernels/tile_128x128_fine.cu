#include "csrc/sm90/describe.cuh"

namespace jax_w4a8::sm90 {

const Kernel tile_128x128_fine = describe<Config<128, 2, 1, true>>(k128x128Fine);

}  // namespace jax_w4a8::sm90
