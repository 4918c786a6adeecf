// A block's shared memory: stages first, then what is reduced, then barriers and group tables.
#pragma once

#include "csrc/sm90/config.h"
#include "csrc/sm90/ptx.cuh"
#include "csrc/sm90/schedule.cuh"

namespace jax_w4a8::sm90 {

// What the producer tells the consumers about a stage's tile.
struct StageInfo {
  int row_tile;  // within the group
  int token;
  int tokens;
  int group;
  uint32_t kinds;    // TileKind of each row tile of the block, a byte each
  uint32_t extreme;  // whether the stage has an activation scale that float32 sums cannot take
};

template <class C>
struct Shared {
  uint8_t* base;
  uint32_t address;
  int stages;
  int groups;

  __device__ Shared(uint8_t* smem, const Params& p)
      : base(smem), address(smem_address(smem)), stages(p.stages), groups(p.groups) {}

  __device__ int fixed() const { return stages * C::kStageBytes; }
  __device__ uint32_t stage(int s) const { return address + s * C::kStageBytes; }
  __device__ uint8_t* stage_data(int s) const { return base + s * C::kStageBytes; }
  __device__ StageInfo& info(int s) const {
    return *reinterpret_cast<StageInfo*>(stage_data(s) + C::kInfoAt);
  }
  __device__ uint8_t* reduce() const { return base + fixed(); }
  __device__ uint32_t reduce_address() const { return address + fixed(); }
  __device__ uint32_t full(int s) const { return address + fixed() + C::kReduceBytes + 16 * s; }
  __device__ uint32_t empty(int s) const { return full(s) + 8; }
  __device__ uint32_t reduced() const { return full(C::kMaxStages); }
  __device__ int warnings_at() const { return fixed() + C::kReduceBytes + C::kBarrierBytes; }
  __device__ uint32_t* warnings() const {
    return reinterpret_cast<uint32_t*>(base + warnings_at());
  }
  __device__ Groups tables() const {
    int* tables = reinterpret_cast<int*>(base + warnings_at() + C::kWarningBytes);
    return {tables, tables + groups + 1, tables + 2 * groups + 1};
  }

  __device__ void init_barriers() const {
    for (int s = 0; s < stages; ++s) {
      barrier_init(full(s), 2);
      barrier_init(empty(s), C::kConsumers * 4);
    }
    barrier_init(reduced(), 1);
    barrier_init_done();
  }
};

// A position in the ring of stages; the parity flips each time round.
struct Ring {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The part of K, in units, that block `rank` of a split takes.
struct Span {
  int begin, end;
};

__device__ inline Span span_of(const Params& p, int rank) {
  if (p.split == 1) return {0, p.k_units};
  return {rank * p.k_units / p.split, (rank + 1) * p.k_units / p.split};
}

// This block's tiles. The blocks of a cluster split the K of one tile.
template <class C>
struct BlockSchedule {
  int rank;
  Schedule<C::kTokens> schedule;

  __device__ BlockSchedule(const Params& p, Groups groups)
      : rank(p.split > 1 ? cluster_rank() : 0),
        schedule(p, groups, row_steps(p), first(p, blockIdx.x), first(p, gridDim.x)) {}

  __device__ static int first(const Params& p, int blocks) {
    return p.split == 1 ? blocks : blocks / p.split;
  }

  __host__ __device__ static int row_steps(const Params& p) {
    return (p.row_tiles + C::kRowTiles - 1) / C::kRowTiles;
  }

  __device__ Work tile() {
    Work t;
    schedule.current(t.group, t.row_tile, t.token, t.tokens);
    t.row_tile *= C::kRowTiles;
    return t;
  }
};

}  // namespace jax_w4a8::sm90
