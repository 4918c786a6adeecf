// The producer warpgroup: one thread issues the copies of each stage, three warps bring what needs
// a look at its values: activation scales as floats, row exponents, and how exact a tile must be.
#pragma once

#include "csrc/sm90/shared.cuh"

namespace jax_w4a8::sm90 {

// Activation scales within 2^-60..2^60 leave float32 sums room for 40 binades of a row's weights.
constexpr int kLowestScale = 127 - 60, kHighestScale = 127 + 60, kScaleNan = 255;

// The stages that a producer fills, one after the other over all the block's tiles.
template <class C>
class Stages {
 public:
  __device__ Stages(const Params& p, const Shared<C>& shared)
      : blocks_(p, shared.tables()),
        span_(span_of(p, p.split > 1 ? blocks_.rank : 0)),
        count_(shared.stages),
        kb_(span_.begin) {
    if (!done()) tile_ = blocks_.tile();
  }

  __device__ bool done() const { return blocks_.schedule.done(); }
  __device__ const Work& tile() const { return tile_; }
  __device__ int kb() const { return kb_; }
  __device__ int units() const { return min(C::kSlices, span_.end - kb_); }
  __device__ bool opens_tile() const { return kb_ == span_.begin; }
  __device__ const Ring& ring() const { return ring_; }

  __device__ void advance() {
    ring_.advance(count_);
    kb_ += C::kSlices;
    if (kb_ < span_.end) return;
    kb_ = span_.begin;
    blocks_.schedule.advance();
    if (!done()) tile_ = blocks_.tile();
  }

  __device__ void advance(int steps) {
    for (int i = 0; i < steps && !done(); ++i) advance();
  }

 private:
  BlockSchedule<C> blocks_;
  const Span span_;
  const int count_;
  int kb_;
  Ring ring_;
  Work tile_;
};

template <class C>
__device__ inline int rows_of(const Params& p, const Work& tile) {
  return min(C::kRowTiles, max(p.row_tiles - tile.row_tile, 0));
}

template <class C>
__device__ inline void load_weights(const Params& p, const Shared<C>& shared, const Stages<C>& at) {
  const int rows = rows_of<C>(p, at.tile()), stage = at.ring().stage;
  const uint32_t bar = shared.full(stage), to = shared.stage(stage) + C::kUnitsAt;
  const uint64_t keep =
      static_cast<uint64_t>(p.m <= C::kTokens ? Keep::kEvictFirst : Keep::kNormal);
  barrier_arrive_expect(bar, at.units() * (C::kTokenBytes + rows * kUnitBytes));
  for (int r = 0; r < rows; ++r) {
    const size_t row_tile =
        static_cast<size_t>(at.tile().group) * p.row_tiles + at.tile().row_tile + r;
    bulk_load(to + r * C::kSlices * kUnitBytes,
              p.units + (row_tile * p.k_units + at.kb()) * kUnitBytes, at.units() * kUnitBytes, bar,
              keep);
  }
}

template <class C>
__device__ inline void load_tokens(const CUtensorMap* map, const Shared<C>& shared,
                                   const Stages<C>& at) {
  const int stage = at.ring().stage;
  constexpr uint64_t kKeep = static_cast<uint64_t>(Keep::kEvictLast);
  for (int i = 0; i < at.units(); ++i) {
    const uint32_t to = shared.stage(stage) + i * C::kTokenBytes, bar = shared.full(stage);
    const int column = (at.kb() + i) * kUnitK;
    tensor_load(to, map, column, at.tile().token, bar, kKeep);
  }
}

// Weights are there before the kernel that quantises the activations ends: the first stages' come
// while it runs.
template <class C>
__device__ inline void produce_copies(const CUtensorMap* map, const Params& p,
                                      const Shared<C>& shared) {
  Stages<C> tokens(p, shared), weights = tokens;
  for (int i = 0; i < shared.stages && !weights.done(); ++i, weights.advance()) {
    load_weights(p, shared, weights);
  }
  wait_for_earlier_kernels();
  for (int i = 0; i < shared.stages && !tokens.done(); ++i, tokens.advance()) {
    load_tokens(map, shared, tokens);
  }
  for (; !tokens.done(); tokens.advance()) {
    barrier_wait(shared.empty(tokens.ring().stage), tokens.ring().parity ^ 1);
    load_weights(p, shared, tokens);
    load_tokens(map, shared, tokens);
  }
}

// The scales of a stage's tokens, a few to each lane of the warp that brings them.
template <class C>
struct StageScales {
  static constexpr int kScales = C::kSlices * C::kSubBlocks * C::kTokens;
  static constexpr int kEach = kScales / 32;

  uint8_t bytes[kEach];

  __device__ void load(const Params& p, const Stages<C>& at, int lane) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int token = (i * 32 + lane) % C::kTokens, sub = (i * 32 + lane) / C::kTokens;
      const int column = p.block ? at.kb() * C::kSubBlocks + sub : 0;
      bytes[i] = 127;
      if (token < at.tile().tokens && column < p.x_blocks) {
        const size_t row = at.tile().token + token;
        bytes[i] = __ldg(p.x_scales + row * p.x_blocks + column);
      }
    }
  }

  // Writes them as floats; whether one is past what float32 sums can take.
  __device__ bool store(float* scales, int lane) const {
    bool extreme = false;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int token = (i * 32 + lane) % C::kTokens, sub = (i * 32 + lane) / C::kTokens;
      const bool nan = bytes[i] == kScaleNan;
      extreme |= !nan && (bytes[i] < kLowestScale || bytes[i] > kHighestScale);
      // The tokens that one thread's sums belong to are contiguous.
      const int position = token % 8 / 2 * C::kColumnStride + token / 8 * 2 + token % 2;
      scales[sub * C::kScaleStride + position] = __int_as_float(nan ? 0x7FFFFFFF : bytes[i] << 23);
    }
    return __any_sync(~0u, extreme);
  }
};

// A warp takes every third stage, with the loads of its next one under way.
template <class C>
__device__ inline void produce_meta(const Params& p, const Shared<C>& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - C::kConsumerThreads / 32 - 1;
  Stages<C> at(p, shared);
  at.advance(warp);
  Stages<C> ahead = at;
  StageScales<C> next;
  if (!ahead.done()) next.load(p, ahead, lane);
  for (; !at.done(); at.advance(kMetaWarps)) {
    const StageScales<C> scales = next;
    ahead.advance(kMetaWarps);
    if (!ahead.done()) next.load(p, ahead, lane);
    const int tiles_before = at.tile().group * p.row_tiles + at.tile().row_tile;
    const int rows = rows_of<C>(p, at.tile()), stage = at.ring().stage;
    uint32_t tops = 0, kinds = 0;
    if (at.opens_tile()) {
      const auto* from = reinterpret_cast<const uint32_t*>(p.tops + size_t{64} * tiles_before);
      if (lane < rows * 16) tops = __ldg(from + lane);
      for (int r = 0; r < C::kRowTiles; ++r) {
        kinds |= (r < rows ? __ldg(p.kinds + tiles_before + r) : kKept) << 8 * r;
      }
    }
    barrier_wait(shared.empty(stage), at.ring().parity ^ 1);
    uint8_t* data = shared.stage_data(stage);
    const bool extreme = scales.store(reinterpret_cast<float*>(data + C::kScalesAt), lane);
    if (at.opens_tile() && lane < C::kRowTiles * 16) {
      reinterpret_cast<uint32_t*>(data + C::kTopsAt)[lane] = tops;
    }
    if (lane == 0) {
      const Work& tile = at.tile();
      shared.info(stage) = {tile.row_tile, tile.token, tile.tokens, tile.group, kinds, extreme};
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared.full(stage));
  }
}

}  // namespace jax_w4a8::sm90
