#ifndef JAX_W4A8_CSRC_HOST_PARALLEL_H_
#define JAX_W4A8_CSRC_HOST_PARALLEL_H_

#include <cstdint>
#include <functional>

#include "xla/ffi/api/ffi.h"

namespace jax_w4a8::host {

// Runs task(0) to task(count - 1) on this thread and on those of XLA's pool that are free; returns
// when all have run. It never waits for a task that has not begun, so products that run at once
// cannot keep the pool from each other.
void parallel_for(xla::ffi::ThreadPool& pool, int64_t count, std::function<void(int64_t)> task);

}  // namespace jax_w4a8::host

#endif  // JAX_W4A8_CSRC_HOST_PARALLEL_H_
