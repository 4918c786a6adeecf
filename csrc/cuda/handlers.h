// The quantising custom calls, which are the same on every GPU: x [..., K] to codes [..., K] and
// scales [..., blocks].
#pragma once

#include "csrc/cuda/quantize.h"
#include "xla/ffi/api/ffi.h"

namespace jax_w4a8::cuda {

// Operand x, attribute block.
XLA_FFI_DECLARE_HANDLER_SYMBOL(kCudaQuantize);
// Operands gate and up, attribute block: silu(gate) * up, rounded to their dtype, is quantised.
XLA_FFI_DECLARE_HANDLER_SYMBOL(kCudaSiluMulQuantize);

// Of a type that check_float lets pass.
Float float_type(xla::ffi::DataType type);

}  // namespace jax_w4a8::cuda
