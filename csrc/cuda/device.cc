#include "csrc/cuda/device.h"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <string>

#include "csrc/cuda/checks.h"

namespace jax_w4a8::cuda {
namespace {

int attribute(int ordinal, cudaDeviceAttr name) {
  int value = 0;
  const std::string what = "reading the attributes of CUDA device " + std::to_string(ordinal);
  check(what.c_str(), cudaDeviceGetAttribute(&value, name, ordinal));
  return value;
}

}  // namespace

const Device& device(int ordinal) {
  static std::mutex mutex;
  static auto* const devices = new std::map<int, Device>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = devices->find(ordinal);
  if (found != devices->end()) return found->second;
  const Device read = {ordinal, attribute(ordinal, cudaDevAttrComputeCapabilityMajor),
                       attribute(ordinal, cudaDevAttrComputeCapabilityMinor),
                       attribute(ordinal, cudaDevAttrMultiProcessorCount)};
  return devices->emplace(ordinal, read).first->second;
}

}  // namespace jax_w4a8::cuda
