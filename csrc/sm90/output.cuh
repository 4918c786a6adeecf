// From sums to the result: a row's exponent, the result's type, and the rows nobody computes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "csrc/sm90/layout.h"
#include "csrc/sm90/params.h"

namespace jax_w4a8::sm90 {

// 2^exponent as two factors, since the whole may lie outside float32 where the product does not.
struct RowScale {
  float half, rest;

  __device__ explicit RowScale(int exponent) {
    const int first = exponent >> 1;
    half = __int_as_float((127 + first) << 23);
    rest = __int_as_float((127 + exponent - first) << 23);
  }
  __device__ float operator()(float sum) const { return sum * half * rest; }
};

// The exponent that folded sums lack, from the row's largest exponent byte.
__device__ inline RowScale folded_scale(int top) { return RowScale(top - 127 - kTopShift); }

template <class T>
struct Pair;
template <>
struct Pair<__nv_bfloat16> {
  using Type = __nv_bfloat162;
  static __device__ Type of(float a, float b) { return __floats2bfloat162_rn(a, b); }
};
template <>
struct Pair<__half> {
  using Type = __half2;
  static __device__ Type of(float a, float b) { return __floats2half2_rn(a, b); }
};
template <>
struct Pair<float> {
  using Type = float2;
  static __device__ Type of(float a, float b) { return {a, b}; }
};

// Two neighbouring columns of one row of y.
template <class T>
__device__ inline void store_pair(const Params& p, int row, int column, float a, float b) {
  if (column >= p.n) return;
  T* y = static_cast<T*>(p.y) + static_cast<size_t>(row) * p.n + column;
  const typename Pair<T>::Type pair = Pair<T>::of(a, b);
  if (p.n % 2 == 0) {
    *reinterpret_cast<typename Pair<T>::Type*>(y) = pair;
  } else {
    y[0] = pair.x;
    if (column + 1 < p.n) y[1] = pair.y;
  }
}

// Four sums of an MMA's result: rows 2g and 2g + 1 of a warp's 16, two neighbouring tokens.
template <class T>
__device__ inline void store_quad(const Params& p, int token, int tokens, int first_row, int column,
                                  float4 rows) {
  if (token < tokens) store_pair<T>(p, first_row + token, column, rows.x, rows.z);
  if (token + 1 < tokens) store_pair<T>(p, first_row + token + 1, column, rows.y, rows.w);
}

template <class F>
__device__ inline void with_type(Out out, F&& f) {
  if (out == Out::kBf16) {
    f(__nv_bfloat16{});
  } else if (out == Out::kF16) {
    f(__half{});
  } else {
    f(float{});
  }
}

__device__ inline int out_bytes(Out out) { return out == Out::kF32 ? 4 : 2; }

// Zeros the rows [begin, end) of y; every thread of the grid calls it with its own index.
__device__ inline void zero_rows(const Params& p, int begin, int end, size_t index,
                                 size_t threads) {
  if (begin >= end) return;
  const size_t row_bytes = static_cast<size_t>(p.n) * out_bytes(p.out);
  uint8_t* from = static_cast<uint8_t*>(p.y) + begin * row_bytes;
  uint8_t* to = static_cast<uint8_t*>(p.y) + end * row_bytes;
  uint8_t* body = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(from) + 15) & ~15ull);
  if (body > to) body = to;
  const size_t vectors = (to - body) / 16;
  uint8_t* tail = body + 16 * vectors;
  for (size_t i = index; i < vectors; i += threads) {
    reinterpret_cast<uint4*>(body)[i] = make_uint4(0, 0, 0, 0);
  }
  if (index < 16 && from + index < body) from[index] = 0;
  if (index < 16 && tail + index < to) tail[index] = 0;
}

}  // namespace jax_w4a8::sm90
