#include "csrc/cuda/checks.h"

#include <algorithm>
#include <stdexcept>

namespace jax_w4a8::cuda {

void refuse(const std::string& message) { throw std::invalid_argument("jax_w4a8: " + message); }

void refuse_device(const Device& device, const char* backend, const char* needed) {
  refuse("device " + std::to_string(device.ordinal) + ": the " + backend +
         " kernels need compute capability " + needed + ", got " + std::to_string(device.major) +
         "." + std::to_string(device.minor) +
         "; jax_w4a8.use_backend(\"auto\") takes what the device has");
}

void check(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string("jax_w4a8: ") + what + ": " + cudaGetErrorString(error));
}

void check_alignment(const char* name, const void* pointer, int bytes) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (address % bytes == 0) return;
  refuse(std::string(name) + ": expected an address that is a multiple of " +
         std::to_string(bytes) + ", got one that is " + std::to_string(address % bytes) +
         " more; copy it into an array of its own");
}

void check_sizes(int64_t rows, int64_t n, int64_t k, int64_t groups) {
  if (std::max({rows, n, k, groups}) < int64_t{1} << 30) return;
  refuse("expected fewer than 2^30 rows, columns, groups and elements along K");
}

}  // namespace jax_w4a8::cuda
