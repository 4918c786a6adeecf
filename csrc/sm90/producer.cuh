// The producer warpgroup: one thread issues the copies of each stage, three warps bring what needs
// a look at its values: activation scales as floats, row exponents, and how exact a tile must be.
#pragma once

#include "csrc/sm90/shared.cuh"

namespace jax_w4a8::sm90 {

// Activation scales within 2^-60..2^60 leave float32 sums room for 40 binades of a row's weights.
constexpr int kLowestScale = 127 - 60, kHighestScale = 127 + 60, kScaleNan = 255;

template <class C>
__device__ inline void load_stage(const CUtensorMap* map, const Params& p, const Shared<C>& shared,
                                  const Work& tile, int rank, int kb, int units, int stage) {
  const int rows = min(C::kRowTiles, max(p.row_tiles - tile.row_tile, 0));
  const uint32_t bar = shared.full(stage), to = shared.stage(stage);
  barrier_arrive_expect(bar, units * (C::kTokenBytes + rows * kUnitBytes));
  for (int r = 0; r < rows; ++r) {
    const size_t row_tile = static_cast<size_t>(tile.group) * p.row_tiles + tile.row_tile + r;
    bulk_load(to + C::kUnitsAt + r * C::kSlices * kUnitBytes,
              p.units + (row_tile * p.k_units + kb) * kUnitBytes, units * kUnitBytes, bar,
              static_cast<uint64_t>(p.m <= C::kTokens ? Keep::kEvictFirst : Keep::kNormal));
  }
  constexpr int kShare = C::kTokens / C::kMulticast;
  for (int i = 0; i < units; ++i) {
    const uint32_t at = to + i * C::kTokenBytes;
    constexpr uint64_t kKeep = static_cast<uint64_t>(Keep::kEvictLast);
    if constexpr (C::kMulticast > 1) {
      tensor_load_multicast(at + rank * kShare * kUnitK, map, (kb + i) * kUnitK,
                            tile.token + rank * kShare, bar, (1 << C::kMulticast) - 1, kKeep);
    } else {
      tensor_load(at, map, (kb + i) * kUnitK, tile.token, bar, kKeep);
    }
  }
}

template <class C>
__device__ inline void produce_copies(const CUtensorMap* map, const Params& p,
                                      const Shared<C>& shared) {
  BlockSchedule<C> blocks(p, shared.tables());
  const Span span = span_of(p, p.split > 1 ? blocks.rank : 0);
  Ring ring;
  for (; !blocks.schedule.done(); blocks.schedule.advance()) {
    const Work tile = blocks.tile();
    for (int kb = span.begin; kb < span.end; kb += C::kSlices) {
      barrier_wait_cluster(shared.empty(ring.stage), ring.parity ^ 1);
      load_stage(map, p, shared, tile, blocks.rank, kb, min(C::kSlices, span.end - kb), ring.stage);
      ring.advance(p.stages);
    }
  }
}

// Where a token's scale lies: the tokens that one thread's sums belong to are contiguous.
template <class C>
__device__ inline int scale_position(int token) {
  return token % 8 / 2 * C::kColumnStride + token / 8 * 2 + token % 2;
}

template <class C>
__device__ inline void produce_meta(const Params& p, const Shared<C>& shared) {
  constexpr int kLanes = kMetaWarps * 32;
  constexpr int kScales = C::kSlices * C::kSubBlocks * C::kTokens;
  constexpr int kEach = (kScales + kLanes - 1) / kLanes;
  const int lane = threadIdx.x - C::kConsumerThreads - 32;
  BlockSchedule<C> blocks(p, shared.tables());
  const Span span = span_of(p, p.split > 1 ? blocks.rank : 0);
  Ring ring;
  for (; !blocks.schedule.done(); blocks.schedule.advance()) {
    const Work tile = blocks.tile();
    const int tiles_before = tile.group * p.row_tiles + tile.row_tile;
    const int rows = min(C::kRowTiles, max(p.row_tiles - tile.row_tile, 0));
    for (int kb = span.begin; kb < span.end; kb += C::kSlices) {
      int bytes[kEach];
      bool extreme = false;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int at = i * kLanes + lane, token = at % C::kTokens, sub = at / C::kTokens;
        const int column = p.block ? kb * C::kSubBlocks + sub : 0;
        bytes[i] = 127;
        if (at < kScales && token < tile.tokens && column < p.x_blocks) {
          bytes[i] =
              __ldg(p.x_scales + static_cast<size_t>(tile.token + token) * p.x_blocks + column);
        }
      }
      barrier_wait_cluster(shared.empty(ring.stage), ring.parity ^ 1);
      uint8_t* stage = shared.stage_data(ring.stage);
      float* scales = reinterpret_cast<float*>(stage + C::kScalesAt);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int at = i * kLanes + lane, token = at % C::kTokens, sub = at / C::kTokens;
        const bool nan = bytes[i] == kScaleNan;
        extreme |= !nan && (bytes[i] < kLowestScale || bytes[i] > kHighestScale);
        if (at < kScales) {
          scales[sub * C::kScaleStride + scale_position<C>(token)] =
              __int_as_float(nan ? 0x7FFFFFFF : bytes[i] << 23);
        }
      }
      StageInfo& info = shared.info(ring.stage);
      extreme = __any_sync(~0u, extreme);
      if (lane % 32 == 0) info.extreme[lane / 32] = extreme;
      if (kb == span.begin) {
        if (lane < rows * 16) {
          reinterpret_cast<uint32_t*>(stage + C::kTopsAt)[lane] = __ldg(
              reinterpret_cast<const uint32_t*>(p.tops + static_cast<size_t>(tiles_before) * 64) +
              lane);
        }
        if (lane < C::kRowTiles) {
          info.kinds[lane] = lane < rows ? __ldg(p.kinds + tiles_before + lane) : kKept;
        }
        if (lane == 0) {
          info.row_tile = tile.row_tile;
          info.token = tile.token;
          info.tokens = tile.tokens;
          info.group = tile.group;
        }
      }
      __syncwarp();
      if (lane % 32 == 0) barrier_arrive(shared.full(ring.stage));
      ring.advance(p.stages);
    }
  }
}

}  // namespace jax_w4a8::sm90
