// The extension module jax_w4a8._sm90.

#include "csrc/ffi/module.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "csrc/sm90/handlers.h"
#include "csrc/sm90/kernels.h"

namespace {

namespace nb = nanobind;
namespace sm90 = jax_w4a8::sm90;

nb::list kernels() {
  nb::list list;
  for (const sm90::Kernel* kernel : sm90::kernels()) {
    nb::dict entry;
    entry["tile"] = std::string(kernel->tile.name);
    entry["threads"] = kernel->threads;
    entry["stage_bytes"] = kernel->stage_bytes;
    list.append(entry);
  }
  return list;
}

std::pair<std::string, int> choose_tile(int64_t m, int64_t n, int64_t k, int64_t groups, bool fine,
                                        int sm_count) {
  const sm90::Choice choice = sm90::choose_tile({m, n, k, groups, fine, groups == 1}, sm_count);
  return {std::string(choice.tile->name), choice.split};
}

}  // namespace

NB_MODULE(_sm90, module) {
  jax_w4a8::define_module(module, sm90::targets());
  module.def("kernels", &kernels,
             "Every kernel that is built, as a dict: tile, threads, stage_bytes.");
  module.def("choose_tile", &choose_tile, nb::arg("m"), nb::arg("n"), nb::arg("k"),
             nb::arg("groups"), nb::arg("fine"), nb::arg("sm_count"),
             "The (tile, split) that a product takes; m is the rows of each group.");
}
