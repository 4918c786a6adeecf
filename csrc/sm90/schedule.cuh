// Which tiles there are and which block computes which, worked out on the device.
#pragma once

#include "csrc/sm90/params.h"

namespace jax_w4a8::sm90 {

struct Work {
  int group;
  int row_tile;  // first tile of 64 rows, within the group
  int token;     // first row of x
  int tokens;    // rows of x that are the tile's own
};

// Per-group tables in shared memory: tiles before it, first row of x, rows of x.
struct Groups {
  int* tiles_before;  // [groups + 1]
  int* first;         // [groups]
  int* count;         // [groups]
};

__device__ inline int saturating_scan(int value, int limit, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value = min(value, limit - other) + other;
  }
  return value;
}

// Fills the tables; one warp. `row_steps`: tiles along the rows of one weight.
__device__ inline void scan_groups(const Params& p, int tile_tokens, int row_steps, Groups to) {
  const int lane = threadIdx.x % 32;
  int rows = 0, tiles = 0;
  for (int base = 0; base < p.groups; base += 32) {
    const int group = base + lane;
    int count = group < p.groups ? min(max(p.sizes[group], 0), p.m) : 0;
    int first = group * p.m;
    if (p.kind == Kind::kGrouped) {
      const int end = min(saturating_scan(count, p.m, lane), p.m - rows) + rows;
      first = __shfl_up_sync(~0u, end, 1);
      if (lane == 0) first = rows;
      count = end - first;
      rows = __shfl_sync(~0u, end, 31);
    }
    const int own = (count + tile_tokens - 1) / tile_tokens * row_steps;
    const int after = saturating_scan(own, 0x7FFFFFFF, lane) + tiles;
    if (group < p.groups) {
      to.tiles_before[group] = after - own;
      to.first[group] = first;
      to.count[group] = count;
    }
    tiles = __shfl_sync(~0u, after, 31);
  }
  if (lane == 0) to.tiles_before[p.groups] = tiles;
}

// The tiles of one block (or cluster) in order. Within a group the tokens of a band go first, so
// that blocks at work together share weights, and their tokens stay in L2 for the next rows.
template <int kTokens>
class Schedule {
 public:
  __device__ Schedule(const Params& p, Groups groups, int row_steps, int first, int step)
      : p_(p), groups_(groups), row_steps_(row_steps), index_(first), step_(step) {
    dense_ = p.kind == Kind::kDense;
    total_ = dense_ ? (p.m + kTokens - 1) / kTokens * row_steps : groups.tiles_before[p.groups];
  }

  __device__ bool done() const { return index_ >= total_; }
  __device__ void advance() { index_ += step_; }

  // `row_step` counts in tiles of the caller's height.
  __device__ void current(int& group, int& row_step, int& token, int& tokens) {
    int local = index_, first = 0, count = p_.m;
    if (!dense_) {
      while (index_ >= groups_.tiles_before[group_ + 1]) ++group_;
      local -= groups_.tiles_before[group_];
      first = groups_.first[group_];
      count = groups_.count[group_];
    }
    const int token_tiles = (count + kTokens - 1) / kTokens;
    if (token_tiles == 1) {
      group = group_;
      row_step = local;
      token = first;
      tokens = count;
      return;
    }
    const int band = local / (p_.band * row_steps_);
    const int within = local - band * p_.band * row_steps_;
    const int width = min(p_.band, token_tiles - band * p_.band);
    const int offset = (band * p_.band + within % width) * kTokens;
    group = group_;
    row_step = within / width;
    token = first + offset;
    tokens = min(kTokens, count - offset);
  }

 private:
  const Params& p_;
  const Groups groups_;
  const int row_steps_;
  int index_;
  const int step_;
  int total_;
  int group_ = 0;
  bool dense_;
};

}  // namespace jax_w4a8::sm90
