// The product kernel: one producer warpgroup, and consumers that persist over the block's tiles.
#pragma once

#include "csrc/sm90/consumer.cuh"
#include "csrc/sm90/producer.cuh"

namespace jax_w4a8::sm90 {

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
__global__ void __launch_bounds__(C::kThreads, 1)
    product_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) uint8_t smem[];
  const Shared<C> shared(smem, p);
  const int warp = threadIdx.x / 32;
  constexpr int kProducerWarp = C::kConsumerThreads / 32;
  if (threadIdx.x == C::kConsumerThreads) {
    tensor_prefetch(&x_map);
    shared.init_barriers();
  }
  if (p.kind != Kind::kDense && warp == kProducerWarp) {
    scan_groups(p, C::kTokens, BlockSchedule<C>::row_steps(p), shared.tables());
  }
  __syncthreads();
  if (p.split > 1) cluster_arrive();
  if (warp >= kProducerWarp) {
    give_registers<C::kProducerRegisters>();
    if (warp > kProducerWarp) {
      wait_for_earlier_kernels();
      produce_meta<C>(p, shared);
    } else if (threadIdx.x % 32 == 0) {
      produce_copies<C>(&x_map, p, shared);
    }
    if (p.split > 1) {
      __syncwarp();
      cluster_wait();
    }
  } else {
    take_registers<C::kConsumerRegisters>();
    wait_for_earlier_kernels();
    if (p.kind != Kind::kDense) zero_unused_rows<C>(p, shared.tables());
    Consumer<C>(p, shared).run();
  }
}

}  // namespace jax_w4a8::sm90
