// The extension module jax_w4a8._host.

#include "csrc/ffi/module.h"

#include <nanobind/nanobind.h>

#include "csrc/host/handlers.h"
#include "csrc/host/isa.h"

NB_MODULE(_host, module) {
  namespace host = jax_w4a8::host;
  using namespace nanobind::literals;
  jax_w4a8::define_module(module, {
                                      {"jax_w4a8_host_dense_v1", host::kDense},
                                      {"jax_w4a8_host_grouped_v1", host::kGrouped},
                                      {"jax_w4a8_host_masked_v1", host::kMasked},
                                      {"jax_w4a8_host_quantize_v1", host::kQuantize},
                                  });
  module.def(
      "instruction_sets",
      [] {
        nanobind::list names;
        for (const host::Kernels* usable : host::usable_kernels()) names.append(usable->name);
        return names;
      },
      "Names of the instruction sets that this CPU has kernels for, the fastest first.");
  module.def("instruction_set", [] { return host::kernels().name; }, "Name of the one in use.");
  module.def("has_matrix_instructions", &host::has_matrix_instructions,
             "Whether this CPU has instructions for products of bfloat16 matrices (AMX).");
  module.def("use_instruction_set", &host::use_kernels, "name"_a,
             "Has every later call use another one, to test or to time it.");
}
