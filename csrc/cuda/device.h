// What the kernels' choice asks of a GPU, read once for each.
#pragma once

namespace jax_w4a8::cuda {

struct Device {
  int ordinal;
  int major;  // compute capability
  int minor;
  int sm_count;
};

// The device of that ordinal. Throws std::runtime_error when the driver does not know it. May be
// called from several threads at once.
const Device& device(int ordinal);

}  // namespace jax_w4a8::cuda
