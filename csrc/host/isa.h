// Which instruction set's kernels are used.

#ifndef JAX_W4A8_CSRC_HOST_ISA_H_
#define JAX_W4A8_CSRC_HOST_ISA_H_

#include <vector>

#include "csrc/host/kernels.h"

namespace jax_w4a8::host {

// Those that this CPU can run, the fastest first.
std::vector<const Kernels*> usable_kernels();

// The first of them, unless use_kernels has named others.
const Kernels& kernels();
void use_kernels(const char* name);

// Whether this CPU has instructions for products of bfloat16 matrices (AMX), which XLA uses and the
// kernels here do not.
bool has_matrix_instructions();

}  // namespace jax_w4a8::host

#endif  // JAX_W4A8_CSRC_HOST_ISA_H_
