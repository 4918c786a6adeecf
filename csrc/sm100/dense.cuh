// A dense kernel from its tile and result type.
#pragma once

#include "csrc/sm100/gemm.cuh"

namespace jax_w4a8::sm100 {

template <class Element, int kMmaM, int kMmaN, bool kWeightsFirst>
struct Dense : GemmTypes<Element, kMmaM, kMmaN, kWeightsFirst, false> {
  using Types = GemmTypes<Element, kMmaM, kMmaN, kWeightsFirst, false>;
  using Gemm = typename Types::Gemm;
  using GemmKernel = typename Types::GemmKernel;
  using ElementA = typename Types::ElementA;
  using ElementB = typename Types::ElementB;
  using Scale = typename Types::Scale;

  static typename Gemm::Arguments arguments(const Launch& launch) {
    const void *a = launch.x, *a_scales = launch.x_scales;
    const void *b = launch.w, *b_scales = launch.w_scales;
    if constexpr (kWeightsFirst) {
      std::swap(a, b);
      std::swap(a_scales, b_scales);
    }
    const auto problem = cute::append<4>(Types::problem(launch.m, launch.n, launch.k), 1);
    const auto [m, n, k, l] = problem;
    typename GemmKernel::StrideA stride_a{};
    typename GemmKernel::StrideB stride_b{};
    typename GemmKernel::StrideD stride_d{};
    return {
        cutlass::gemm::GemmUniversalMode::kGemm,
        problem,
        {static_cast<const ElementA*>(a), cutlass::make_cute_packed_stride(stride_a, {m, k, l}),
         static_cast<const ElementB*>(b), cutlass::make_cute_packed_stride(stride_b, {n, k, l}),
         static_cast<const Scale*>(a_scales), Types::ScaleConfig::tile_atom_to_shape_SFA(problem),
         static_cast<const Scale*>(b_scales), Types::ScaleConfig::tile_atom_to_shape_SFB(problem)},
        {{},
         nullptr,
         {},
         static_cast<Element*>(launch.y),
         cutlass::make_cute_packed_stride(stride_d, {m, n, l})},
        hardware(launch)};
  }

  static size_t workspace_bytes(const Launch& launch) {
    return Gemm::get_workspace_size(arguments(launch));
  }

  static const char* run(const Launch& launch) {
    return sm100::launch<Gemm>(arguments(launch), launch);
  }

  static constexpr Kernel describe(const char* name) {
    return {{name, kMmaM, kMmaN, Types::kSms, kWeightsFirst, false},
            out_of<Element>(),
            workspace_bytes,
            run};
  }
};

// Defines a kernel's table of one entry for each result type.
#define JAX_W4A8_SM100_DENSE(symbol, name, mma_m, mma_n, weights_first) \
  namespace jax_w4a8::sm100 {                                           \
  extern const Kernel symbol[kOuts] = {                                 \
      Dense<Bf16, mma_m, mma_n, weights_first>::describe(name),         \
      Dense<F16, mma_m, mma_n, weights_first>::describe(name),          \
      Dense<F32, mma_m, mma_n, weights_first>::describe(name),          \
  };                                                                    \
  }

}  // namespace jax_w4a8::sm100
