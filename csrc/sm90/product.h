// A product from checked operands to launches: plain pointers, no XLA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "csrc/cuda/device.h"
#include "csrc/cuda/quantize.h"
#include "csrc/sm90/params.h"

namespace jax_w4a8::sm90 {

struct Product {
  Kind kind;
  int64_t m;  // rows of x; of each group where masked
  int64_t n, k;
  int64_t groups;  // 1 when dense
  int block;       // activations that share a scale: 32, 128, or 0 for the whole row
  Out out;
  std::string_view tile;  // the name of one, or "" to choose
  int split;              // 0 to choose

  const void* x;            // floats [rows, k], or E4M3 codes where there are scales
  cuda::Float x_type;       // of floats
  const uint8_t* x_scales;  // UE8M0 [rows, blocks], or null
  const int32_t* sizes;     // [groups], or null when dense
  const uint8_t* units;     // [groups, row_tiles, k_units, kUnitBytes]
  const uint8_t* tops;      // [groups, row_tiles, 64]
  const uint8_t* kinds;     // [groups, row_tiles]
  void* y;                  // [rows, n]
  uint8_t* workspace;
  int64_t workspace_bytes;

  int64_t rows() const { return kind == Kind::kMasked ? groups * m : m; }
};

// Launches everything that the product takes, on `stream` of `device`. Throws std::invalid_argument
// when an argument is not as it must be, with nothing launched, and std::runtime_error when a
// launch fails. The launches depend on no data, so that they can be captured in a command buffer.
void run(const Product& product, const cuda::Device& device, cudaStream_t stream);

}  // namespace jax_w4a8::sm90
