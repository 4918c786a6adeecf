// A dense kernel from its tile and result type.
#pragma once

#include "csrc/sm100/gemm.cuh"
#include "csrc/sm100/kernels.h"

namespace jax_w4a8::sm100 {

template <class Element, const Tile& kTile>
struct Dense {
  using Types = GemmTypes<Element, kTile>;
  using Gemm = typename Types::Gemm;
  using GemmKernel = typename Types::GemmKernel;

  static typename Gemm::Arguments arguments(const Launch& launch) {
    const void *a = launch.x, *a_scales = launch.x_scales;
    const void *b = launch.w, *b_scales = launch.w_scales;
    if constexpr (Types::kWeightsFirst) {
      std::swap(a, b);
      std::swap(a_scales, b_scales);
    }
    const auto problem = cute::append<4>(Types::problem(launch.m, launch.n, launch.k), 1);
    const auto [m, n, k, l] = problem;
    using Scale = typename Types::Scale;
    return {
        cutlass::gemm::GemmUniversalMode::kGemm,
        problem,
        {static_cast<const typename Types::ElementA*>(a),
         cutlass::make_cute_packed_stride(typename GemmKernel::StrideA{}, {m, k, l}),
         static_cast<const typename Types::ElementB*>(b),
         cutlass::make_cute_packed_stride(typename GemmKernel::StrideB{}, {n, k, l}),
         static_cast<const Scale*>(a_scales), Types::ScaleConfig::tile_atom_to_shape_SFA(problem),
         static_cast<const Scale*>(b_scales), Types::ScaleConfig::tile_atom_to_shape_SFB(problem)},
        {{},
         nullptr,
         {},
         static_cast<Element*>(launch.y),
         cutlass::make_cute_packed_stride(typename GemmKernel::StrideD{}, {m, n, l})},
        hardware(launch)};
  }

  static size_t workspace_bytes(const Launch& launch) {
    return Gemm::get_workspace_size(arguments(launch));
  }

  static const char* run(const Launch& launch) {
    return run_gemm<Gemm>(arguments(launch), launch.workspace, launch.stream,
                          [] { return cudaSuccess; });
  }
};

}  // namespace jax_w4a8::sm100
