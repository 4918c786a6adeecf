// A grouped kernel from its tile and result type: CUTLASS's pointer-array GEMM, one problem a
// group, with the problems written on the device.
#pragma once

#include "csrc/sm100/gemm.cuh"
#include "csrc/sm100/kernels.h"

namespace jax_w4a8::sm100 {

template <class Element, const Tile& kTile>
struct Grouped {
  using Types = GemmTypes<Element, kTile>;
  using Gemm = typename Types::Gemm;
  using GemmKernel = typename Types::GemmKernel;
  using ElementA = typename Types::ElementA;
  using ElementB = typename Types::ElementB;
  using Scale = typename Types::Scale;
  using Shape = typename Types::ProblemShape::UnderlyingProblemShape;
  using StrideA = typename GemmKernel::InternalStrideA;
  using StrideB = typename GemmKernel::InternalStrideB;
  using StrideD = typename GemmKernel::InternalStrideD;
  using ScalesA = typename GemmKernel::CollectiveMainloop::InternalLayoutSFA;
  using ScalesB = typename GemmKernel::CollectiveMainloop::InternalLayoutSFB;

  // Arrays over the groups, one after the other in the workspace.
  struct Problems {
    const ElementA** a;
    const ElementB** b;
    const Scale** a_scales;
    const Scale** b_scales;
    Element** d;
    StrideA* a_stride;
    StrideB* b_stride;
    StrideD* d_stride;
    ScalesA* a_scales_layout;
    ScalesB* b_scales_layout;
    Shape* shape;
    uint8_t* end;
  };

  static Problems place(void* workspace, int groups) {
    auto* at = static_cast<uint8_t*>(workspace);
    Problems p{};
    auto take = [&](auto*& array) {
      array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(at);
      at += round_up<size_t>(groups * sizeof(*array), kWorkspaceAlignment);
    };
    take(p.a);
    take(p.b);
    take(p.a_scales);
    take(p.b_scales);
    take(p.d);
    take(p.a_stride);
    take(p.b_stride);
    take(p.d_stride);
    take(p.a_scales_layout);
    take(p.b_scales_layout);
    take(p.shape);
    p.end = at;
    return p;
  }

  static __device__ void write_problem(const Launch& launch, const Problems& p, int group) {
    const Group rows = launch.groups[group];
    const int64_t units = launch.k / kTileK;
    const int64_t weight = int64_t{group} * launch.n;
    const auto* x = static_cast<const uint8_t*>(launch.x) + int64_t{rows.first_row} * launch.k;
    const auto* x_scales =
        static_cast<const uint8_t*>(launch.x_scales) + rows.first_tile * units * kScaleTileBytes;
    const auto* w = static_cast<const uint8_t*>(launch.w) + weight * (launch.k / 2);
    const auto* w_scales =
        static_cast<const uint8_t*>(launch.w_scales) + group * scale_bytes(launch.n, launch.k);
    const uint8_t *a = x, *a_scales = x_scales, *b = w, *b_scales = w_scales;
    if constexpr (Types::kWeightsFirst) {
      a = w, a_scales = w_scales, b = x, b_scales = x_scales;
    }
    const auto [m, n, k] = Types::problem(rows.rows, launch.n, launch.k);
    p.shape[group] = cute::make_shape(m, n, k);
    p.a[group] = reinterpret_cast<const ElementA*>(a);
    p.b[group] = reinterpret_cast<const ElementB*>(b);
    p.a_scales[group] = reinterpret_cast<const Scale*>(a_scales);
    p.b_scales[group] = reinterpret_cast<const Scale*>(b_scales);
    p.d[group] = static_cast<Element*>(launch.y) + int64_t{rows.first_row} * launch.n;
    p.a_stride[group] = cutlass::make_cute_packed_stride(StrideA{}, {m, k, 1});
    p.b_stride[group] = cutlass::make_cute_packed_stride(StrideB{}, {n, k, 1});
    p.d_stride[group] = cutlass::make_cute_packed_stride(StrideD{}, {m, n, 1});
    const auto problem = cute::make_shape(m, n, k, 1);
    p.a_scales_layout[group] = Types::ScaleConfig::tile_atom_to_shape_SFA(problem);
    p.b_scales_layout[group] = Types::ScaleConfig::tile_atom_to_shape_SFB(problem);
  }

  static typename Gemm::Arguments arguments(const Launch& launch, const Problems& p) {
    return {cutlass::gemm::GemmUniversalMode::kGrouped,
            {launch.group_count, p.shape, nullptr},
            {p.a, p.a_stride, p.b, p.b_stride, p.a_scales, p.a_scales_layout, p.b_scales,
             p.b_scales_layout},
            {{}, nullptr, nullptr, p.d, p.d_stride},
            hardware(launch)};
  }

  static size_t workspace_bytes(const Launch& launch) {
    const Problems p = place(nullptr, launch.group_count);
    return reinterpret_cast<size_t>(p.end) + Gemm::get_workspace_size(arguments(launch, p));
  }

  static const char* run(const Launch& launch);
};

// One thread a group.
template <class Kernel>
__global__ void write_problems(const __grid_constant__ Launch launch,
                               const __grid_constant__ typename Kernel::Problems problems) {
  const int group = blockIdx.x * blockDim.x + threadIdx.x;
  if (group < launch.group_count) Kernel::write_problem(launch, problems, group);
}

template <class Element, const Tile& kTile>
const char* Grouped<Element, kTile>::run(const Launch& launch) {
  constexpr int kThreads = 64;
  const Problems p = place(launch.workspace, launch.group_count);
  return run_gemm<Gemm>(arguments(launch, p), p.end, launch.stream, [&] {
    write_problems<Grouped>
        <<<ceil_div(launch.group_count, kThreads), kThreads, 0, launch.stream>>>(launch, p);
    return cudaGetLastError();
  });
}

}  // namespace jax_w4a8::sm100
