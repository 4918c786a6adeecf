// The custom calls of the CPU backend; docs/backends.md has their operands.

#ifndef JAX_W4A8_CSRC_HOST_HANDLERS_H_
#define JAX_W4A8_CSRC_HOST_HANDLERS_H_

#include "xla/ffi/api/ffi.h"

namespace jax_w4a8::host {

XLA_FFI_DECLARE_HANDLER_SYMBOL(kDense);
XLA_FFI_DECLARE_HANDLER_SYMBOL(kGrouped);
XLA_FFI_DECLARE_HANDLER_SYMBOL(kMasked);
XLA_FFI_DECLARE_HANDLER_SYMBOL(kQuantize);

}  // namespace jax_w4a8::host

#endif  // JAX_W4A8_CSRC_HOST_HANDLERS_H_
