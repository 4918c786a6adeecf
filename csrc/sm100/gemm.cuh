// One CUTLASS block-scaled GEMM, E4M3 activations by E2M1 weights, for a tile and a result type.
#pragma once

#include <type_traits>
#include <utility>

#include "csrc/sm100/kernel.h"
#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/detail/sm100_blockscaled_layout.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/dispatch_policy.hpp"
#include "cutlass/gemm/group_array_problem_shape.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/util/packed_stride.hpp"

namespace jax_w4a8::sm100 {

using Bf16 = cutlass::bfloat16_t;
using F16 = cutlass::half_t;
using F32 = float;

template <class Element>
constexpr Out out_of() {
  if (std::is_same_v<Element, Bf16>) return Out::kBF16;
  return std::is_same_v<Element, F16> ? Out::kF16 : Out::kF32;
}

// A CUTLASS kernel under a short name, which profilers and disassemblers show.
template <class Element, const Tile& kTile>
struct Sm100Kernel;

// The CUTLASS types. The schedules are named because the automatic choice accepts FP4 pointers
// that its own loads cannot take.
template <class Element, const Tile& kTile>
struct GemmTypes {
  static constexpr int kMmaM = kTile.mma_m, kMmaN = kTile.mma_n, kSms = kTile.sms();
  static constexpr bool kWeightsFirst = kTile.order == Order::kWeightsFirst;
  static constexpr bool kGrouped = kTile.grouped;

  using Activation = cutlass::mx_float8_t<cutlass::float_e4m3_t>;
  using Weight = cutlass::mx_float4_t<cutlass::float_e2m1_t>;
  using A = std::conditional_t<kWeightsFirst, Weight, Activation>;
  using B = std::conditional_t<kWeightsFirst, Activation, Weight>;
  static constexpr int kActivationAlignment = 16, kWeightAlignment = 128;
  static constexpr int kAlignmentA = kWeightsFirst ? kWeightAlignment : kActivationAlignment;
  static constexpr int kAlignmentB = kWeightsFirst ? kActivationAlignment : kWeightAlignment;
  static constexpr int kAlignmentD = 16 / sizeof(Element);

  template <class Tag>
  using Layout = std::conditional_t<kGrouped, Tag*, Tag>;
  using LayoutA = Layout<cutlass::layout::RowMajor>;
  using LayoutB = Layout<cutlass::layout::ColumnMajor>;
  using LayoutD = Layout<
      std::conditional_t<kWeightsFirst, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>>;

  template <class OneSm, class TwoSms>
  using Schedule = std::conditional_t<kSms == 1, OneSm, TwoSms>;
  using MainloopSchedule =
      std::conditional_t<kGrouped,
                         Schedule<cutlass::gemm::KernelPtrArrayTmaWarpSpecialized1SmMxf8f6f4Sm100,
                                  cutlass::gemm::KernelPtrArrayTmaWarpSpecialized2SmMxf8f6f4Sm100>,
                         Schedule<cutlass::gemm::KernelTmaWarpSpecialized1SmMxf8f6f4Sm100,
                                  cutlass::gemm::KernelTmaWarpSpecialized2SmMxf8f6f4Sm100>>;
  using EpilogueSchedule = std::conditional_t<
      kGrouped,
      Schedule<cutlass::epilogue::PtrArrayTmaWarpSpecialized1Sm,
               cutlass::epilogue::PtrArrayTmaWarpSpecialized2Sm>,
      Schedule<cutlass::epilogue::TmaWarpSpecialized1Sm, cutlass::epilogue::TmaWarpSpecialized2Sm>>;

  using TileShape = cute::Shape<cute::Int<kMmaM>, cute::Int<kMmaN>, cute::Int<kTileK>>;
  using ClusterShape = cute::Shape<cute::Int<kSms>, cute::_1, cute::_1>;
  using Arch = cutlass::arch::Sm100;
  using OperatorClass = cutlass::arch::OpClassBlockScaledTensorOp;

  // What the automatic choice is for all tiles but those 256 columns wide. Those would get 128 x
  // 128, which leaves the mainloop one stage when the result is float32, and which the next tile's
  // MMAs wait for: two accumulators of 256 columns overlap by one epilogue tile.
  using EpilogueTile = cute::Shape<cute::_128, cute::_32>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      Arch, OperatorClass, TileShape, ClusterShape, EpilogueTile, float, float, void, LayoutD,
      kAlignmentD, Element, LayoutD, kAlignmentD, EpilogueSchedule>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      Arch, OperatorClass, A, LayoutA, kAlignmentA, B, LayoutB, kAlignmentB, float, TileShape,
      ClusterShape,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      MainloopSchedule>::CollectiveOp;

  using ProblemShape =
      std::conditional_t<kGrouped, cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>,
                         cute::Shape<int, int, int, int>>;
  using Universal = cutlass::gemm::kernel::GemmUniversal<ProblemShape, Mainloop, Epilogue, void>;
  using GemmKernel = Sm100Kernel<Element, kTile>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<GemmKernel>;
  using ScaleConfig = typename Mainloop::Sm1xxBlkScaledConfig;

  using ElementA = typename A::DataType;
  using ElementB = typename B::DataType;
  using Scale = typename A::ScaleFactorType;
  static_assert(Mainloop::DispatchPolicy::Stages >= 3, "too few stages to hide the loads");

  // The problem of a product of `m` rows in the MMA's terms.
  CUTLASS_HOST_DEVICE static cute::Shape<int, int, int> problem(int m, int n, int k) {
    return kWeightsFirst ? cute::make_shape(n, m, k) : cute::make_shape(m, n, k);
  }
};

template <class Element, const Tile& kTile>
struct Sm100Kernel : GemmTypes<Element, kTile>::Universal {};

// Launches the GEMM, after `prepare`, which launches what writes its problems; nothing if CUTLASS
// refuses the arguments. nullptr, or what failed.
template <class Gemm, class Prepare>
const char* run_gemm(const typename Gemm::Arguments& arguments, void* workspace,
                     cudaStream_t stream, Prepare prepare) {
  cutlass::Status status = Gemm::can_implement(arguments);
  Gemm gemm;
  if (status == cutlass::Status::kSuccess) status = gemm.initialize(arguments, workspace, stream);
  if (status != cutlass::Status::kSuccess) return cutlassGetStatusString(status);
  if (const cudaError_t error = prepare(); error != cudaSuccess) return cudaGetErrorString(error);
  status = gemm.run(stream);
  return status == cutlass::Status::kSuccess ? nullptr : cutlassGetStatusString(status);
}

inline cutlass::KernelHardwareInfo hardware(const Launch& launch) {
  cutlass::KernelHardwareInfo info;
  info.device_id = launch.device;
  info.sm_count = launch.sm_count;
  return info;
}

// The description of a kernel: `Family` is Dense or Grouped.
template <template <class, const Tile&> class Family, class Element, const Tile& kTile>
constexpr Kernel describe() {
  using Types = GemmTypes<Element, kTile>;
  return {kTile,
          out_of<Element>(),
          Types::Mainloop::DispatchPolicy::Stages,
          Types::GemmKernel::SharedStorageSize,
          Family<Element, kTile>::workspace_bytes,
          Family<Element, kTile>::run};
}

}  // namespace jax_w4a8::sm100
