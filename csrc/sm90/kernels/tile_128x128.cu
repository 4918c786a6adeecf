#include "csrc/sm90/describe.cuh"

namespace jax_w4a8::sm90 {

const Kernel tile_128x128 = describe<Config<128, 2, 1, false>>(k128x128);

}  // namespace jax_w4a8::sm90
