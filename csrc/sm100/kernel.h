// What the handlers know of a compiled kernel: plain C++, free of CUTLASS and of XLA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "csrc/sm100/layout.h"

namespace jax_w4a8::sm100 {

enum class Out { kBF16, kF16, kF32 };
constexpr int kOuts = 3;

// A shape of tile, of which there is one kernel for each result type. The tile is the part of y
// that one MMA instruction covers, in the MMA's terms: its M is 128 for each SM that takes part.
struct Tile {
  const char* name;
  int mma_m, mma_n;
  int sms;             // SMs that share the tile (a cluster along the MMA's M)
  bool weights_first;  // the weight is operand A, so the MMA's M runs along N of the product
  bool grouped;

  // Rows and columns of y in one tile.
  constexpr int rows() const { return weights_first ? mma_n : mma_m; }
  constexpr int columns() const { return weights_first ? mma_m : mma_n; }
};

// Everything that a launch needs. Pointers are device pointers; k and n are those of the packed
// weight, multiples of 128 and 8.
struct Launch {
  int m, n, k;
  const void* x;         // E4M3 [m, k]
  const void* x_scales;  // UE8M0, swizzled; the groups' own tiles in a grouped product
  const void* w;         // E2M1 [n, k / 2], with the groups in front in a grouped product
  const void* w_scales;  // UE8M0, swizzled
  void* y;               // [m, n]
  int group_count;       // 0: dense
  const Group* groups;   // [group_count]
  void* workspace;
  size_t workspace_bytes;
  int device;
  int sm_count;
  cudaStream_t stream;
};

struct Kernel {
  Tile tile;
  Out out;
  size_t (*workspace_bytes)(const Launch&);
  // nullptr, or what failed. Nothing is launched when it fails.
  const char* (*run)(const Launch&);
};

}  // namespace jax_w4a8::sm100
