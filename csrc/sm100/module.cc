// The extension module jax_w4a8._sm100.

#include "csrc/ffi/module.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "csrc/sm100/handlers.h"
#include "csrc/sm100/kernels.h"

namespace {

namespace nb = nanobind;
namespace sm100 = jax_w4a8::sm100;

const char* out_name(sm100::Out out) {
  if (out == sm100::Out::kF32) return "float32";
  return out == sm100::Out::kBF16 ? "bfloat16" : "float16";
}

nb::list kernels() {
  nb::list list;
  for (const sm100::Kernel* kernel : sm100::kernels()) {
    nb::dict entry;
    entry["tile"] = std::string(kernel->tile.name);
    entry["out"] = out_name(kernel->out);
    entry["stages"] = kernel->stages;
    entry["shared_bytes"] = kernel->shared_bytes;
    list.append(entry);
  }
  return list;
}

std::string choose_tile(int64_t m, int64_t n, int64_t k, int64_t groups, bool grouped,
                        int sm_count) {
  return std::string(sm100::choose_tile({m, n, k, groups, grouped}, sm_count).name);
}

}  // namespace

NB_MODULE(_sm100, module) {
  jax_w4a8::define_module(module, sm100::targets());
  module.def("kernels", &kernels, "Every kernel that is built, as a dict: tile, out, stages, ...");
  module.def("choose_tile", &choose_tile, nb::arg("m"), nb::arg("n"), nb::arg("k"),
             nb::arg("groups"), nb::arg("grouped"), nb::arg("sm_count"),
             "The name of the tile that a product takes; m is the rows of each group.");
}
