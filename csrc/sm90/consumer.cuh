// The consumer warpgroups: expand weights, multiply, promote to float32, reduce, store.
#pragma once

#include "csrc/sm90/exact.cuh"
#include "csrc/sm90/expand.cuh"
#include "csrc/sm90/mma.cuh"
#include "csrc/sm90/output.cuh"
#include "csrc/sm90/shared.cuh"

namespace jax_w4a8::sm90 {

template <class C>
class Consumer {
 public:
  static constexpr int kTokens = C::kTokens;
  static constexpr int kSums = kTokens / 2;

  __device__ Consumer(const Params& p, const Shared<C>& shared)
      : p_(p),
        shared_(shared),
        blocks_(p, shared.tables()),
        group_(threadIdx.x / kWarpgroup),
        row_(group_ / C::kSlices),
        slice_(group_ % C::kSlices),
        thread_(threadIdx.x % kWarpgroup),
        lane_(threadIdx.x % 32) {}

  __device__ void run() {
    const Span span = span_of(p_, p_.split > 1 ? blocks_.rank : 0);
    for (; !blocks_.schedule.done(); blocks_.schedule.advance()) {
      float acc[kSums];
#pragma unroll
      for (int i = 0; i < kSums; ++i) acc[i] = 0;
      open_tile();
      if (kind(row_) == kFolded) {
        multiply(span, acc);
      } else {
        for (int kb = span.begin; kb < span.end; kb += C::kSlices) {
          wait_full();
          release();
        }
      }
      const bool reduce = C::kSlices > 1 || p_.split > 1;
      if (reduce) {
        if (p_.split > 1) {
          send(acc);
        } else {
          keep(acc);
        }
        extreme_ = any_warning();
        with_type(p_.out, [&](auto type) { finish_reduced<decltype(type)>(); });
      } else {
        with_type(p_.out, [&](auto type) { finish<decltype(type)>(acc); });
      }
      exact_tiles();
      if (reduce) named_barrier(1, C::kConsumerThreads);
    }
  }

 private:
  // Everything about a tile travels in its first stage.
  __device__ void open_tile() {
    wait_full();
    info_ = shared_.info(ring_.stage);
    extreme_ = false;
    const uint8_t* tops = shared_.stage_data(ring_.stage) + C::kTopsAt;
    // The 16 rows that this warp will finish: its own, or its share of the reduction's.
    const int rows = final_warp_tile() * 16 + lane_ / 4 * 2;
    tops_[0] = tops[rows];
    tops_[1] = tops[rows + 1];
  }

  __device__ int warp_tiles_here() const { return C::kWarpTiles / p_.split; }
  __device__ int final_warp_tile() const {
    const int warp = threadIdx.x / 32;
    if (C::kSlices == 1 && p_.split == 1) return warp;
    return (p_.split > 1 ? blocks_.rank : 0) * warp_tiles_here() + warp % warp_tiles_here();
  }

  __device__ void wait_full() { barrier_wait(shared_.full(ring_.stage), ring_.parity); }

  __device__ void release() {
    const StageInfo& info = shared_.info(ring_.stage);
    extreme_ |= info.extreme != 0;
    __syncwarp();
    if (lane_ == 0) barrier_arrive(shared_.empty(ring_.stage));
    ring_.advance(p_.stages);
  }

  __device__ void load(uint32_t (&a)[16]) const {
    const uint8_t* unit = shared_.stage_data(ring_.stage) + C::kUnitsAt + group_ * kUnitBytes;
    const uint4* codes = reinterpret_cast<const uint4*>(unit);
    const Codes mine = {{codes[thread_], codes[kWarpgroup + thread_]},
                        reinterpret_cast<const uint2*>(unit + kCodeBytes)[thread_ / 4]};
    expand_folded(mine, a);
  }

  // acc += sums * scale of each token.
  __device__ void promote(int stage, int sub, const float (&sums)[kSums],
                          float (&acc)[kSums]) const {
    const float* scales = reinterpret_cast<const float*>(shared_.stage_data(stage) + C::kScalesAt) +
                          (slice_ * C::kSubBlocks + sub) * C::kScaleStride +
                          lane_ % 4 * C::kColumnStride;
#pragma unroll
    for (int j = 0; j < kTokens / 8; j += 2) {
      const float4 s = reinterpret_cast<const float4*>(scales)[j / 2];
      const float pairs[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        acc[4 * j + i] = fmaf(sums[4 * j + i], pairs[i / 4 * 2 + i % 2], acc[4 * j + i]);
      }
    }
  }

  __device__ uint64_t tokens_of(int stage) const {
    return token_descriptor(shared_.stage(stage) + slice_ * C::kTokenBytes);
  }

  __device__ void multiply(Span span, float (&acc)[kSums]) {
    int kb = span.begin;
    if constexpr (C::kAhead) {
      // The stages that have a unit for every slice.
      const int whole = (span.end - span.begin) / C::kSlices;
      if (whole > 0) multiply_ahead(whole, acc);
      kb += whole * C::kSlices;
    }
    for (; kb < span.end; kb += C::kSlices) {
      wait_full();
      if (kb + slice_ < span.end) {
        uint32_t a[16];
        load(a);
        multiply_unit(a, acc);
      }
      release();
    }
  }

  __device__ void multiply_unit(uint32_t (&a)[16], float (&acc)[kSums]) {
    float sums[kSums];
    const uint64_t tokens = tokens_of(ring_.stage);
    if constexpr (C::kFine) {
#pragma unroll
      for (int step = 0; step < kUnitGroups; ++step) {
        mma_begin();
        mma<kTokens>(sums, a, step, tokens, false);
        mma_commit();
        mma_finish(sums);
        promote(ring_.stage, step, sums, acc);
      }
    } else {
      mma_begin();
#pragma unroll
      for (int step = 0; step < kUnitGroups; ++step) mma<kTokens>(sums, a, step, tokens, step > 0);
      mma_commit();
      mma_finish(sums);
      promote(ring_.stage, 0, sums, acc);
    }
  }

  // The next unit's weights are expanded while the tensor cores work on this one's.
  __device__ void multiply_ahead(int left, float (&acc)[kSums]) {
    uint32_t even[16], odd[16];
    wait_full();
    load(even);
    while (true) {
      step_ahead(even, odd, left, acc);
      if (left == 0) break;
      step_ahead(odd, even, left, acc);
      if (left == 0) break;
    }
  }

  __device__ void step_ahead(uint32_t (&now)[16], uint32_t (&next)[16], int& left,
                             float (&acc)[kSums]) {
    float sums[kSums];
    const uint64_t tokens = tokens_of(ring_.stage);
    mma_begin();
#pragma unroll
    for (int step = 0; step < kUnitGroups; ++step) mma<kTokens>(sums, now, step, tokens, step > 0);
    mma_commit();
    const Ring here = ring_;
    if (--left > 0) {
      ring_.advance(p_.stages);
      wait_full();
      load(next);
      ring_ = here;
    }
    mma_finish(sums);
    promote(ring_.stage, 0, sums, acc);
    release();
  }

  // Where this warp's sums go in the memory of the block that finishes them. Sources are summed in
  // a fixed order there, so results do not depend on who comes first.
  __device__ int slot() const {
    const int here = warp_tiles_here();
    const int source = (p_.split > 1 ? blocks_.rank : 0) * C::kSlices + slice_;
    return source * here + own_warp_tile() % here;
  }
  __device__ int own_warp_tile() const { return row_ * 4 + thread_ / 32; }

  __device__ void keep(const float (&acc)[kSums]) const {
    float4* to = reinterpret_cast<float4*>(shared_.reduce()) + slot() * (kTokens / 8) * 32 + lane_;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      to[j * 32] = make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]);
    }
    if (lane_ == 0) shared_.warnings()[slot()] = extreme_;
    named_barrier(1, C::kConsumerThreads);
  }

  // A block that shares its tile computes no other, so this happens once.
  __device__ void send(const float (&acc)[kSums]) const {
    cluster_wait();
    const int here = warp_tiles_here(), owner = own_warp_tile() / here;
    const uint32_t bar = cluster_address(shared_.reduced(), owner);
    if (threadIdx.x == 0) {
      const int sources = p_.split * C::kSlices;
      barrier_arrive_expect(shared_.reduced(), sources * here * (kTokens / 8 * 32 * 16 + 4));
    }
    const uint32_t to = cluster_address(shared_.reduce_address(), owner) +
                        (slot() * (kTokens / 8) * 32 + lane_) * 16;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      store_async(to + j * 32 * 16, acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3],
                  bar);
    }
    if (lane_ == 0) {
      store_async(cluster_address(smem_address(shared_.warnings()), owner) + slot() * 4,
                  static_cast<uint32_t>(extreme_), bar);
    }
    barrier_wait_cluster(shared_.reduced(), 0);
  }

  __device__ bool any_warning() const {
    const int slots = p_.split * C::kSlices * warp_tiles_here();
    uint32_t any = 0;
    for (int i = lane_; i < slots; i += 32) any |= shared_.warnings()[i];
    return __any_sync(~0u, any);
  }

  __device__ uint32_t kind(int row) const { return byte_of(info_.kinds, row); }

  __device__ bool is_exact(int row) const { return extreme_ || kind(row) == kKept; }

  __device__ int column(int warp_tile) const {
    return info_.row_tile * kUnitRows + warp_tile * 16 + lane_ / 4 * 2;
  }

  template <class T>
  __device__ void store(int warp_tile, int j, float4 sums, RowScale even, RowScale odd) const {
    store_quad<T>(p_, 8 * j + lane_ % 4 * 2, info_.tokens, info_.token, column(warp_tile),
                  make_float4(even(sums.x), even(sums.y), odd(sums.z), odd(sums.w)));
  }

  template <class T>
  __device__ void finish(const float (&acc)[kSums]) const {
    if (is_exact(row_)) return;
    const RowScale even = folded_scale(tops_[0]), odd = folded_scale(tops_[1]);
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      store<T>(final_warp_tile(), j,
               make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]), even, odd);
    }
  }

  template <class T>
  __device__ void finish_reduced() const {
    const int here = warp_tiles_here(), warp = threadIdx.x / 32;
    if (is_exact(final_warp_tile() / 4)) return;
    const RowScale even = folded_scale(tops_[0]), odd = folded_scale(tops_[1]);
    const float4* partial = reinterpret_cast<const float4*>(shared_.reduce());
    for (int j = warp / here; j < kTokens / 8; j += C::kConsumers * 4 / here) {
      float4 sums = make_float4(0, 0, 0, 0);
      for (int source = 0; source < p_.split * C::kSlices; ++source) {
        const float4 part =
            partial[((source * here + warp % here) * (kTokens / 8) + j) * 32 + lane_];
        sums.x += part.x;
        sums.y += part.y;
        sums.z += part.z;
        sums.w += part.w;
      }
      store<T>(final_warp_tile(), j, sums, even, odd);
    }
  }

  // Chunks of 16 tokens of the tiles that need it, dealt to the warpgroups of the cluster.
  __device__ void exact_tiles() {
    bool any = false;
    for (int r = 0; r < C::kRowTiles; ++r) any |= is_exact(r);
    if (!any) return;
    named_barrier(1, C::kConsumerThreads);  // the partial sums' memory is free
    const int dealers = p_.split, rank = p_.split > 1 ? blocks_.rank : 0;
    int turn = 0;
    for (int r = 0; r < C::kRowTiles; ++r) {
      if (!is_exact(r) || info_.row_tile + r >= p_.row_tiles) continue;
      for (int token = 0; token < info_.tokens; token += C::kExactTokens, ++turn) {
        if (turn % dealers != rank || turn / dealers % C::kConsumers != group_) continue;
        const size_t tile = static_cast<size_t>(info_.group) * p_.row_tiles + info_.row_tile + r;
        const ExactTile exact = {p_.units + tile * p_.k_units * kUnitBytes,
                                 p_.tops + tile * kUnitRows,
                                 kind(r) == kFolded,
                                 info_.token + token,
                                 min(C::kExactTokens, info_.tokens - token),
                                 (info_.row_tile + r) * kUnitRows};
        uint8_t* scratch = shared_.reduce() + group_ * C::kExactTokens * kUnitK;
        exact_product(p_, exact, scratch, 2 + group_);
      }
    }
  }

  const Params& p_;
  const Shared<C> shared_;
  BlockSchedule<C> blocks_;
  const int group_, row_, slice_, thread_, lane_;
  Ring ring_;
  StageInfo info_;
  int tops_[2];
  bool extreme_ = false;
};

}  // namespace jax_w4a8::sm90
