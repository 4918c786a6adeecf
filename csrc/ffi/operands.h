// The operands of a product's custom call, which every backend's handlers take in the same order:
// see docs/backends.md. Checks throw std::invalid_argument, which `guarded` turns into an FFI
// error.

#ifndef JAX_W4A8_CSRC_FFI_OPERANDS_H_
#define JAX_W4A8_CSRC_FFI_OPERANDS_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace jax_w4a8 {

using Dims = std::vector<int64_t>;

enum class Kind { kDense, kGrouped, kMasked };

// What a product's attributes and the shapes of its operands say.
struct Description {
  Kind kind;
  int64_t m;  // rows; of each group where masked
  int64_t n;
  int64_t k;
  int64_t block;  // activations that share a scale; 0: a whole row
  int64_t groups;

  int64_t rows() const { return kind == Kind::kMasked ? groups * m : m; }
  int64_t x_blocks() const { return block == 0 ? 1 : (k + block - 1) / block; }
  int64_t k_padded() const { return (k + 31) / 32 * 32; }

  // `last`, with the leading dimensions of x and y, or with that of the weight's arrays.
  Dims per_row(int64_t last) const;
  Dims per_group(Dims last) const;
};

struct Operands {
  Description description;
  xla::ffi::AnyBuffer x;  // floats, or codes where there are scales
  std::optional<xla::ffi::AnyBuffer> x_scales;
  std::optional<xla::ffi::AnyBuffer> sizes;
  std::vector<xla::ffi::AnyBuffer> weight;
};

// Takes the call's arguments apart and checks x, the sizes and the result; the weight's arrays are
// their layout's to check, and there are `weight_arrays` of them.
Operands read_operands(Kind kind, xla::ffi::RemainingArgs arguments, size_t weight_arrays,
                       xla::ffi::AnyBuffer y, int64_t n, int64_t k, int64_t block);

// Throws unless `buffer` is of `type` and `dims`; `name` says whose the message is.
void check_buffer(const char* name, xla::ffi::AnyBuffer buffer, xla::ffi::DataType type,
                  const Dims& dims);

// Throws unless `type` is float32, bfloat16 or float16.
void check_float(const char* name, xla::ffi::DataType type);

// Throws unless `block` is 0, 32 or 128.
void check_block(int64_t block);

std::string to_string(xla::ffi::DataType type);
std::string to_string(const Dims& dims);

// Runs the body of a handler; what it throws becomes the call's error.
template <typename Body>
xla::ffi::Error guarded(Body body) {
  try {
    body();
    return xla::ffi::Error::Success();
  } catch (const std::invalid_argument& error) {
    return xla::ffi::Error(xla::ffi::ErrorCode::kInvalidArgument, error.what());
  } catch (const std::bad_alloc&) {
    return xla::ffi::Error(xla::ffi::ErrorCode::kResourceExhausted,
                           "jax_w4a8: out of memory for the kernel's buffers");
  } catch (const std::exception& error) {
    return xla::ffi::Error(xla::ffi::ErrorCode::kInternal, error.what());
  }
}

}  // namespace jax_w4a8

#endif  // JAX_W4A8_CSRC_FFI_OPERANDS_H_
