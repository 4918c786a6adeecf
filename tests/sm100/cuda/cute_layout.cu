// CuTe's own layout functions, run on the host: what test_cute_layout.py compares with.
#include <cstdint>

#include "csrc/sm100/layout.h"
#include "cute/tensor.hpp"
#include "cutlass/detail/sm100_blockscaled_layout.hpp"
#include "cutlass/util/packed_stride.hpp"

namespace {

using Config = cutlass::detail::Sm1xxBlockScaledConfig<32>;
using RowMajor = cute::Stride<int64_t, cute::_1, int64_t>;

}  // namespace

extern "C" {

// Bytes that the scales of A [m, k] and of B [n, k] span.
void scale_sizes(int m, int n, int k, int64_t* sizes) {
  const auto problem = cute::make_shape(m, n, k, 1);
  sizes[0] = cute::cosize(Config::tile_atom_to_shape_SFA(problem));
  sizes[1] = cute::cosize(Config::tile_atom_to_shape_SFB(problem));
}

// Where the scale of element (row, k0) lies, as an operand A and as an operand B.
void scale_offsets(int m, int n, int k, int row, int k0, int64_t* offsets) {
  const auto problem = cute::make_shape(m, n, k, 1);
  offsets[0] = Config::tile_atom_to_shape_SFA(problem)(row, k0, 0);
  offsets[1] = Config::tile_atom_to_shape_SFB(problem)(row, k0, 0);
}

// Elements between rows, between neighbours in a row, and between batches.
void row_major_strides(int rows, int columns, int64_t* strides) {
  const auto stride = cutlass::make_cute_packed_stride(RowMajor{}, {rows, columns, 1});
  strides[0] = cute::get<0>(stride);
  strides[1] = cute::get<1>(stride);
  strides[2] = cute::get<2>(stride);
}

int64_t own_scale_bytes(int64_t rows, int64_t k) { return jax_w4a8::sm100::scale_bytes(rows, k); }

int64_t own_scale_offset(int64_t row, int k0, int k) {
  using namespace jax_w4a8::sm100;
  return scale_offset(row, k0 / kTileK, k / kTileK) + k0 % kTileK / kScaleBlock;
}
}
