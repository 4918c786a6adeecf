// What the handlers know of a compiled kernel: free of CUTLASS and of XLA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "csrc/sm100/layout.h"
#include "csrc/sm100/tile.h"
#include "csrc/sm100/workspace.h"

namespace jax_w4a8::sm100 {

enum class Out { kBF16, kF16, kF32 };

// Everything that a launch needs. Pointers are device pointers; k and n are those of the packed
// weight, multiples of kTileK and kColumnMultiple.
struct Launch {
  int m, n, k;
  const void* x;         // E4M3 [m, k]
  const void* x_scales;  // UE8M0, swizzled; the groups' own tiles in a grouped product
  const void* w;         // E2M1 [n, k / 2], with the groups in front in a grouped product
  const void* w_scales;  // UE8M0, swizzled
  void* y;               // [m, n]
  int group_count;       // 0: dense
  const Group* groups;   // [group_count]
  void* workspace;       // kWorkspaceAlignment bytes aligned
  size_t workspace_bytes;
  int device;
  int sm_count;
  cudaStream_t stream;
};

// A kernel for one tile and one type of result.
struct Kernel {
  Tile tile;
  Out out;
  int stages;
  int shared_bytes;
  size_t (*workspace_bytes)(const Launch&);
  // nullptr, or what failed. Nothing of the product is launched then.
  const char* (*run)(const Launch&);
};

}  // namespace jax_w4a8::sm100
