// The exact path: what folding and float32 sums cannot hold, far more slowly.
//
// A warpgroup multiplies each group of 32 by itself and adds it in float64 with the whole exponent
// of weight and activation, so any UE8M0 scales are right. It reads operands from global memory and
// leaves the pipeline alone.
#pragma once

#include "csrc/sm90/expand.cuh"
#include "csrc/sm90/mma.cuh"
#include "csrc/sm90/output.cuh"
#include "csrc/sm90/shared.cuh"

namespace jax_w4a8::sm90 {

__device__ inline double exact_scale(int x_byte, int w_byte) {
  if (x_byte == 255 || w_byte == 255) return __longlong_as_double(0x7FF8000000000000ll);
  return __hiloint2double((1023 + x_byte + w_byte - 2 * 127) << 20, 0);
}

struct ExactTile {
  const uint8_t* units;  // of the row tile
  const uint8_t* tops;   // of its 64 rows
  bool folded;
  int token, tokens;  // rows of x: the first, and how many
  int column;         // first column of y
};

// UE8M0 byte of the weights of row `row` (0: 2g, 1: 2g + 1) in group `step` of a unit.
__device__ inline int weight_byte(const ExactTile& t, uint32_t exponents, int step, int top) {
  const int stored = byte_of(exponents, step);
  return t.folded ? top - kTopIndex + (stored & ~kSubnormalMark) : stored;
}

// One warpgroup; `scratch` holds 16 tokens by 128 bytes, `barrier` is a barrier id of its own.
__device__ inline void exact_product(const Params& p, const ExactTile& t, uint8_t* scratch,
                                     int barrier) {
  constexpr int kTokens = 16;
  const int thread = threadIdx.x % kWarpgroup, warp = thread / 32, lane = thread % 32;
  const int g = lane / 4, c = lane % 4;
  const int top[2] = {t.tops[16 * warp + 2 * g], t.tops[16 * warp + 2 * g + 1]};
  const uint64_t descriptor = token_descriptor(smem_address(scratch));
  double acc[8] = {};
  for (int kb = 0; kb < p.k_units; ++kb) {
    const uint8_t* unit = t.units + static_cast<size_t>(kb) * kUnitBytes;
    const uint4* codes = reinterpret_cast<const uint4*>(unit);
    const uint2 exponents = reinterpret_cast<const uint2*>(unit + kCodeBytes)[8 * warp + g];
    const Codes plain = {{codes[thread], codes[kWarpgroup + thread]},
                         {kPlainIndex * 0x01010101u, kPlainIndex * 0x01010101u}};
    uint32_t a[16];
    expand_unit<false>(plain, a);

    const int token = thread / 8, piece = thread % 8, column = kb * kUnitK + 16 * piece;
    uint4 x = make_uint4(0, 0, 0, 0);
    if (token < t.tokens && column < p.k) {
      x = *reinterpret_cast<const uint4*>(p.x_codes + static_cast<size_t>(t.token + token) * p.k +
                                          column);
    }
    reinterpret_cast<uint4*>(scratch)[token * 8 + (piece ^ (token % 8))] = x;
    fence_async_proxy();
    named_barrier(barrier, kWarpgroup);
#pragma unroll
    for (int step = 0; step < kUnitGroups; ++step) {
      float sums[8];
      mma_begin();
      mma<kTokens>(sums, a, step, descriptor, false);
      mma_commit();
      mma_finish(sums);
      const int k = kb * kUnitK + step * kGroupK;
      if (k >= p.k) continue;
      const int block = p.block ? k / p.block : 0;
      const int rows[2] = {weight_byte(t, exponents.x, step, top[0]),
                           weight_byte(t, exponents.y, step, top[1])};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int token = i / 4 * 8 + 2 * c + i % 2;
        const int x_byte =
            token < t.tokens ? p.x_scales[static_cast<size_t>(t.token + token) * p.x_blocks + block]
                             : 127;
        acc[i] += static_cast<double>(sums[i]) * exact_scale(x_byte, rows[i / 2 % 2]);
      }
    }
    named_barrier(barrier, kWarpgroup);
  }
  const int column = t.column + 16 * warp + 2 * g;
  with_type(p.out, [&](auto type) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      store_quad<decltype(type)>(
          p, 8 * j + 2 * c, t.tokens, t.token, column,
          make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]));
    }
  });
}

}  // namespace jax_w4a8::sm90
