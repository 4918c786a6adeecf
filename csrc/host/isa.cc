#include "csrc/host/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>

namespace jax_w4a8::host {

// Each is defined in kernels.cc, compiled for that instruction set.
const Kernels& kernels_generic();
#if defined(__x86_64__)
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();
#endif

std::vector<const Kernels*> usable_kernels() {
  std::vector<const Kernels*> usable;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    usable.push_back(&kernels_avx512());
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    usable.push_back(&kernels_avx2());
#endif
  usable.push_back(&kernels_generic());
  return usable;
}

bool has_matrix_instructions() {
#if defined(__x86_64__)
  unsigned eax, ebx, ecx, edx;
  constexpr unsigned kAmxBf16 = 1u << 22;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kAmxBf16) != 0;
#else
  return false;
#endif
}

namespace {

std::atomic<const Kernels*>& chosen() {
  static std::atomic<const Kernels*> kernels = usable_kernels().front();
  return kernels;
}

}  // namespace

const Kernels& kernels() { return *chosen(); }

void use_kernels(const char* name) {
  std::string known;
  for (const Kernels* usable : usable_kernels()) {
    if (std::strcmp(usable->name, name) == 0) {
      chosen() = usable;
      return;
    }
    known += std::string(known.empty() ? "" : ", ") + usable->name;
  }
  throw std::invalid_argument(std::string("instruction set: expected one of ") + known + "; got " +
                              name);
}

}  // namespace jax_w4a8::host
