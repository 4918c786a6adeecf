// The custom calls of the SM90 backend; docs/backends.md has their operands, docs/sm90.md the
// weight's arrays.
#pragma once

#include <map>
#include <string>

#include "xla/ffi/api/c_api.h"

namespace jax_w4a8::sm90 {

// Target name -> handler.
std::map<std::string, XLA_FFI_Handler*> targets();

}  // namespace jax_w4a8::sm90
