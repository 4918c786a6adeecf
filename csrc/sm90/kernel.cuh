// The product kernel: one producer warpgroup, and consumers that persist over the block's tiles.
#pragma once

#include "csrc/sm90/consumer.cuh"
#include "csrc/sm90/producer.cuh"

namespace jax_w4a8::sm90 {

// Starts bringing a dense product's weights into L2 while earlier kernels still run: L2 is where
// their writes land too, so nothing stale can be read from it later.
template <class C>
__device__ inline void prefetch_weights(const Params& p) {
  const int cluster = C::kMulticast * p.split, rank = cluster > 1 ? cluster_rank() : 0;
  const int step = blockIdx.x / cluster;
  if (p.kind != Kind::kDense || step >= BlockSchedule<C>::row_steps(p)) return;
  const Span span = span_of(p, p.split > 1 ? rank : 0);
  const int first = (step * C::kMulticast + (C::kMulticast > 1 ? rank : 0)) * C::kRowTiles;
  for (int r = first; r < min(first + C::kRowTiles, p.row_tiles); ++r) {
    bulk_prefetch(p.units + (static_cast<size_t>(r) * p.k_units + span.begin) * kUnitBytes,
                  (span.end - span.begin) * kUnitBytes);
  }
}

template <class C>
__device__ inline void zero_unused_rows(const Params& p, const Groups& groups) {
  const size_t index = static_cast<size_t>(blockIdx.x) * C::kConsumerThreads + threadIdx.x;
  const size_t threads = static_cast<size_t>(gridDim.x) * C::kConsumerThreads;
  if (p.kind == Kind::kGrouped) {
    const int last = p.groups - 1;
    zero_rows(p, groups.first[last] + groups.count[last], p.m, index, threads);
  } else if (p.kind == Kind::kMasked) {
    for (int e = 0; e < p.groups; ++e) {
      zero_rows(p, e * p.m + groups.count[e], (e + 1) * p.m, index, threads);
    }
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm)
    product_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) uint8_t smem[];
  const Shared<C> shared(smem, p);
  const int warp = threadIdx.x / 32;
  constexpr int kProducerWarp = C::kConsumerThreads / 32;
  const bool cluster = C::kMulticast > 1 || p.split > 1;
  if (threadIdx.x == C::kConsumerThreads) {
    prefetch_weights<C>(p);
    tensor_prefetch(&x_map);
    shared.init_barriers(p.split);
  }
  wait_for_earlier_kernels();
  let_next_kernel_start();
  if (p.kind != Kind::kDense && warp == kProducerWarp) {
    scan_groups(p, C::kTokens, BlockSchedule<C>::row_steps(p), shared.tables());
  }
  if (cluster) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }
  if (warp >= kProducerWarp) {
    if constexpr (C::kShareRegisters) give_registers<C::kProducerRegisters>();
    if (warp > kProducerWarp) {
      produce_meta<C>(p, shared);
    } else if (threadIdx.x % 32 == 0) {
      produce_copies<C>(&x_map, p, shared);
    }
  } else {
    if constexpr (C::kShareRegisters) take_registers<C::kConsumerRegisters>();
    if (p.kind != Kind::kDense) zero_unused_rows<C>(p, shared.tables());
    Consumer<C>(p, shared).run();
  }
  // Another block may still copy into this one's memory or arrive at its barriers.
  if (C::kMulticast > 1) {
    __syncwarp();
    cluster_arrive();
    cluster_wait();
  }
}

}  // namespace jax_w4a8::sm90
