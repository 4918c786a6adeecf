// wgmma with weights in registers (64 rows) and tokens in shared memory (kTokens columns).
#pragma once

#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/arch/mma_sm90_gmma_ext.hpp>
#include <cute/arch/util.hpp>

namespace jax_w4a8::sm90 {

template <int kTokens>
struct MmaAtom;
#define JAX_W4A8_ATOM(n)                                                \
  template <>                                                           \
  struct MmaAtom<n> {                                                   \
    using Type = cute::SM90::GMMA::MMA_64x##n##x32_F32E4M3E4M3_RS_TN<>; \
  }
JAX_W4A8_ATOM(16);
JAX_W4A8_ATOM(32);
JAX_W4A8_ATOM(64);
JAX_W4A8_ATOM(128);
JAX_W4A8_ATOM(160);
JAX_W4A8_ATOM(192);
#undef JAX_W4A8_ATOM

// Descriptor of a [tokens, 128 bytes] operand with the 128-byte swizzle: eight rows are 1024 bytes.
__device__ inline uint64_t token_descriptor(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 >> 4} << 32,
                     kUnused = uint64_t{1} << 16;
  return kSwizzle128 | kEightRows | kUnused | ((address & 0x3FFFF) >> 4);
}

constexpr int kDescriptorStep = 32 >> 4;  // one k-step of 32 bytes along the row

// d = a * b, or d += a * b.
template <int kTokens>
__device__ inline void mma(float (&d)[kTokens / 2], uint32_t (&a)[16], int step, uint64_t b,
                           bool add) {
  uint64_t descriptor[1] = {b + step * kDescriptorStep};
  const cute::SM90::GMMA::ScaleOut scale[1] = {add ? cute::SM90::GMMA::ScaleOut::One
                                                   : cute::SM90::GMMA::ScaleOut::Zero};
  cute::detail::explode(MmaAtom<kTokens>::Type::fma, &a[4 * step], cute::make_int_sequence<4>{},
                        &descriptor[0], cute::make_int_sequence<1>{}, &d[0],
                        cute::make_int_sequence<kTokens / 2>{}, &scale[0],
                        cute::make_int_sequence<1>{});
}

__device__ inline void mma_begin() { cute::warpgroup_arrive(); }

__device__ inline void mma_commit() { cute::warpgroup_commit_batch(); }

template <int kN>
__device__ inline void mma_finish(float (&d)[kN]) {
  cute::warpgroup_wait<0>();
#pragma unroll
  for (int i = 0; i < kN; ++i) cute::warpgroup_fence_operand(d[i]);
}

}  // namespace jax_w4a8::sm90
