// The custom calls of the SM100 backend; docs/backends.md and docs/sm100.md have their operands.
#pragma once

#include <map>
#include <string>

#include "xla/ffi/api/ffi.h"

namespace jax_w4a8::sm100 {

// Target name -> handler.
std::map<std::string, XLA_FFI_Handler*> targets();

}  // namespace jax_w4a8::sm100
