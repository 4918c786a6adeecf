// The CPU kernels of one instruction set. kernels.cc is compiled once for each and fills in one of
// these.

#ifndef JAX_W4A8_CSRC_HOST_KERNELS_H_
#define JAX_W4A8_CSRC_HOST_KERNELS_H_

#include <cstdint>

namespace jax_w4a8::host {

enum class Float { kF32, kBF16, kF16 };

// Activations of one row: E4M3 codes [k] and UE8M0 scales, one for `block` codes (0: one for all).
struct XRow {
  const uint8_t* codes;
  const uint8_t* scales;
};

// Plain weights of one group: codes [n, k_padded / 2], scales [n, k_padded / 32].
struct Weight {
  const uint8_t* codes;
  const uint8_t* scales;
};

struct Shape {
  int64_t n;
  int64_t k;
  int64_t block;

  int64_t weight_blocks() const { return (k + 31) / 32; }
  int64_t k_padded() const { return 32 * weight_blocks(); }
  int64_t x_blocks() const { return block == 0 ? 1 : (k + block - 1) / block; }
  int64_t block_width() const { return block == 0 ? k : block; }
};

// Some rows, laid out for `multiply`, that meet the weight of one group.
struct Rows {
  const float* laid_out;     // [count, laid_out_size]
  const int32_t* exponents;  // [count], from lay_out_row
  const uint8_t* codes;      // [count, k]
  const uint8_t* scales;     // [count, x_blocks]
  int64_t count;
  void* y;  // [count, n]
  Float y_type;
};

struct Kernels {
  const char* name;

  // Floats of a laid out row of k activations.
  int64_t (*laid_out_size)(int64_t k);

  // One row of activations [k] to codes [k] and scales [x_blocks].
  void (*quantize_row)(const void* x, Float type, const Shape& shape, uint8_t* codes,
                       uint8_t* scales);

  // A quantised row as floats in the order in which `multiply` meets the weights, relative to
  // 2^exponent, which is returned; kWideRow if float32 cannot hold the row that way.
  int32_t (*lay_out_row)(XRow x, const Shape& shape, float* laid_out);

  // Columns [n_begin, n_end) of y.
  void (*multiply)(const Rows& rows, Weight weight, const Shape& shape, int64_t n_begin,
                   int64_t n_end);
};

inline constexpr int32_t kWideRow = INT32_MIN;

// One element of the result in double, which holds the products of any two scales. For rows whose
// scales are too far apart for float32.
double exact_dot(XRow x, const uint8_t* codes, const uint8_t* scales, const Shape& shape);

}  // namespace jax_w4a8::host

#endif  // JAX_W4A8_CSRC_HOST_KERNELS_H_
