// Activations quantised on the device: E4M3 codes and UE8M0 scales, the same bits as
// jax_w4a8.activations.quantize_blocks. Shared by the SM90 and the SM100 backend.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace jax_w4a8::cuda {

enum class Float { kF32, kBF16, kF16 };

enum class ScaleLayout {
  kPlain,     // [rows, blocks]
  kSwizzled,  // SM100's: four scales for each 128 of K, in csrc/sm100/layout.h's tiles
};

// All pointers are device pointers and may have any alignment that their elements have; a multiple
// of 16 for pointers and row lengths in bytes takes the fast path.
struct QuantizeArguments {
  const void* x;             // [rows, k]
  const void* up = nullptr;  // [rows, k]: silu(x) * up, rounded to `type`, is what is quantised
  Float type;
  int64_t rows;
  int k;
  int block;        // elements along K that share a scale: 32, 128, or 0 for the whole row
  uint8_t* codes;   // [rows, code_stride], zero past k
  int code_stride;  // bytes of a row, at least k
  uint8_t* scales;
  ScaleLayout layout = ScaleLayout::kPlain;  // kSwizzled: code_stride is a multiple of 128
  // [rows]: the row of the swizzled scales where each row's go, or -1 for a row that is left out,
  // codes and all. Null: every row has its own.
  const int32_t* scale_rows = nullptr;
};

// Scales of a row in the plain layout.
constexpr int blocks_along(int k, int block) { return block == 0 ? 1 : (k + block - 1) / block; }

// Launches one kernel and waits for nothing; no rows launch none. cudaErrorInvalidValue says that
// the arguments contradict this file, or that rows * k is 2^38 or more.
cudaError_t quantize(const QuantizeArguments& arguments, cudaStream_t stream);

}  // namespace jax_w4a8::cuda
