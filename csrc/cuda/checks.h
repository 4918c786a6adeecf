// What the backends check before a launch, and after it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "csrc/cuda/device.h"

namespace jax_w4a8::cuda {

// Throws std::invalid_argument.
[[noreturn]] void refuse(const std::string& message);

// Refuses a device whose capability is not what `backend` needs.
[[noreturn]] void refuse_device(const Device& device, const char* backend, const char* needed);

// Throws std::runtime_error, which says what failed, unless `error` is none.
void check(const char* what, cudaError_t error);

// Refuses a pointer that is no multiple of `bytes`; `name` says whose it is.
void check_alignment(const char* name, const void* pointer, int bytes);

// Refuses sizes that 32-bit indices may not hold.
void check_sizes(int64_t rows, int64_t n, int64_t k, int64_t groups);

}  // namespace jax_w4a8::cuda
