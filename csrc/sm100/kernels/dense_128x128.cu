#include "csrc/sm100/dense.cuh"

JAX_W4A8_SM100_DENSE(dense_128x128, "128x128", 128, 128, false)
