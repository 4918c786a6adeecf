// What is launched in front of a product's kernel: which rows are whose, and scales laid out for
// it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/sm100/layout.h"

namespace jax_w4a8::sm100 {

// The groups of a grouped or masked product. The sizes are read on the device alone.
struct GroupsArguments {
  const int32_t* sizes;  // [groups]: negative ones are zero, and groups are cut where the rows end
  int groups;
  int m;          // rows of x; of each group where masked
  bool masked;    // x [groups, m, k], and sizes say how many rows of each group are in use
  Group* result;  // [groups]
  int32_t*
      scale_rows;  // [rows of x]: the row of the scales where each row's are, -1 without a group
  uint8_t* y;      // rows of y without a group become zero
  int64_t y_row_bytes;  // a multiple of 16, as y is
};

cudaError_t prepare_groups(const GroupsArguments& arguments, cudaStream_t stream);

// Activations that come quantised, for the kernels.
struct RelayoutArguments {
  const uint8_t* codes;   // [rows, k]
  const uint8_t* scales;  // [rows, blocks]
  int64_t rows;
  int k;
  int block;                  // 32, 128, or 0 for the whole row
  const int32_t* scale_rows;  // as prepare_groups writes them; null: every row has its own
  uint8_t* padded_codes;      // [rows, units * kTileK], zero past k; null: they are not needed
  uint8_t* swizzled_scales;
};

cudaError_t relayout(const RelayoutArguments& arguments, cudaStream_t stream);

}  // namespace jax_w4a8::sm100
