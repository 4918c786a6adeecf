// What every extension module of the package offers: see docs/backends.md.

#ifndef JAX_W4A8_CSRC_FFI_MODULE_H_
#define JAX_W4A8_CSRC_FFI_MODULE_H_

#include <nanobind/nanobind.h>

#include <map>
#include <string>

#include "xla/ffi/api/c_api.h"

namespace jax_w4a8 {

inline void define_module(nanobind::module_& module,
                          std::map<std::string, XLA_FFI_Handler*> targets) {
  module.def(
      "registrations",
      [targets] {
        nanobind::dict capsules;
        for (const auto& [name, handler] : targets) {
          capsules[name.c_str()] = nanobind::capsule(reinterpret_cast<void*>(handler));
        }
        return capsules;
      },
      "The custom-call targets of this module: name -> capsule.");
  module.def(
      "ffi_api_version", [] { return nanobind::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); },
      "The (major, minor) of the XLA FFI header that this module was built with.");
}

}  // namespace jax_w4a8

#endif  // JAX_W4A8_CSRC_FFI_MODULE_H_
