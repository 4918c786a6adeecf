#include "csrc/sm100/grouped.cuh"

namespace jax_w4a8::sm100 {

const Kernel grouped_128x128_f32 = describe<Grouped, F32, kGrouped128x128>();

}  // namespace jax_w4a8::sm100
