// Where a product keeps what it makes on the way, in the scratch that JAX allocates for it:
// jax_w4a8/backends/sm100.py computes the same number of bytes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/sm100/layout.h"

namespace jax_w4a8::sm100 {

constexpr int64_t kWorkspaceAlignment = 256;
// What the grouped kernels keep for each group, and for all SMs together: at most.
constexpr int64_t kProblemBytes = 256, kProblemArrays = 16;
constexpr int64_t kTensorMapBytes = 256 << 10;

// Offsets in bytes; `bytes` is the whole, with room to align the start.
struct Workspace {
  int64_t codes;       // E4M3 [rows, k]
  int64_t scales;      // swizzled scales of `scale_tiles` tiles
  int64_t scale_rows;  // int32 [rows]: the row of the scales where each row's are, or -1
  int64_t groups;      // Group [groups]
  int64_t kernel;      // the kernel's own
  int64_t bytes;
  int64_t scale_tiles;

  // `groups` is 0 when dense; `m` is the rows of x, of each group where masked; `k` is padded.
  constexpr Workspace(int64_t m, int64_t k, int64_t groups_, bool masked)
      : codes(0), scales(0), scale_rows(0), groups(0), kernel(0), bytes(0), scale_tiles(0) {
    const bool dense = groups_ == 0;
    const int64_t rows = masked ? groups_ * m : m;
    const int64_t tiles = ceil_div<int64_t>(m, kScaleTileRows);
    // Each group but an empty one ends in a tile that it may not fill.
    scale_tiles = masked  ? groups_ * tiles
                  : dense ? tiles
                          : m / kScaleTileRows + std::min(m, groups_);
    int64_t end = 0;
    auto take = [&end](int64_t size) {
      const int64_t at = end;
      end += round_up(size, kWorkspaceAlignment);
      return at;
    };
    codes = take(rows * k);
    scales = take(scale_bytes(scale_tiles * kScaleTileRows, k));
    scale_rows = take(dense ? 0 : rows * 4);
    groups = take(groups_ * static_cast<int64_t>(sizeof(Group)));
    kernel = take(dense ? 0 : kTensorMapBytes + (groups_ + kProblemArrays) * kProblemBytes);
    bytes = end + kWorkspaceAlignment;
  }
};

}  // namespace jax_w4a8::sm100
