// One tile's kernel, as the host knows it.
#pragma once

#include "csrc/sm90/kernel.cuh"
#include "csrc/sm90/kernels.h"

namespace jax_w4a8::sm90 {

template <class C>
Kernel describe(const Tile& tile) {
  static_assert(C::kStageBytes % 1024 == 0, "the swizzle needs stages aligned to it");
  return {tile,           reinterpret_cast<const void*>(&product_kernel<C>),
          C::kThreads,    C::kStageBytes,
          C::kFixedBytes, C::kMaxStages};
}

}  // namespace jax_w4a8::sm90
