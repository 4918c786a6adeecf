#include "csrc/sm100/handlers.h"

#include <string_view>

#include "csrc/cuda/handlers.h"
#include "csrc/ffi/operands.h"
#include "csrc/sm100/product.h"

namespace jax_w4a8::sm100 {
namespace {

namespace ffi = ::xla::ffi;

Out out_of(ffi::DataType type) {
  if (type == ffi::DataType::F32) return Out::kF32;
  return type == ffi::DataType::BF16 ? Out::kBF16 : Out::kF16;
}

// N and K of the packed weight, from its codes [(groups), n, k / 2].
Dims packed_dims(const Operands& operands) {
  const ffi::AnyBuffer codes = operands.weight[0];
  const auto dims = codes.dimensions();
  const size_t rank = operands.description.kind == Kind::kDense ? 2 : 3;
  if (dims.size() != rank) {
    throw std::invalid_argument("jax_w4a8: weight codes: expected " + std::to_string(rank) +
                                " dimensions, got " + to_string(Dims(dims.begin(), dims.end())));
  }
  return {dims[rank - 2], 2 * dims[rank - 1]};
}

// The weight's arrays are those of a weight [n, k] that is padded no further than it must be.
void check_weight(const Operands& operands, int64_t n, int64_t k) {
  const Description& d = operands.description;
  if (k % kTileK == 0 && n % kColumnMultiple == 0) {
    check_buffer(
        "weight codes", operands.weight[0], ffi::DataType::U8,
        d.per_group({round_up<int64_t>(d.n, kColumnMultiple), round_up<int64_t>(d.k, kTileK) / 2}));
  }
  check_buffer("weight scales", operands.weight[1], ffi::DataType::U8,
               d.per_group({ceil_div<int64_t>(n, kScaleTileRows),
                            ceil_div<int64_t>(k, kTileK) * kScaleTileBytes}));
}

template <Kind kind>
ffi::Error product(cudaStream_t stream, int32_t device, ffi::RemainingArgs arguments,
                   ffi::Result<ffi::AnyBuffer> y, ffi::Result<ffi::AnyBuffer> workspace, int64_t n,
                   int64_t k, int64_t block, std::string_view tile) {
  return guarded([&] {
    const int64_t columns = round_up<int64_t>(n, kColumnMultiple);
    const Operands operands =
        read_operands(kind, arguments, /*weight_arrays=*/2, *y, columns, k, block);
    const Description& d = operands.description;
    const Dims packed = packed_dims(operands);
    check_weight(operands, packed[0], packed[1]);
    Product p = {};
    p.m = d.m;
    p.n = packed[0];
    p.k = packed[1];
    p.x_k = k;
    p.groups = kind == Kind::kDense ? 0 : d.groups;
    p.masked = kind == Kind::kMasked;
    p.block = static_cast<int>(block);
    p.out = out_of(y->element_type());
    p.tile = tile;
    p.x = operands.x.untyped_data();
    if (operands.x_scales) {
      p.x_scales = static_cast<const uint8_t*>(operands.x_scales->untyped_data());
    } else {
      p.x_type = cuda::float_type(operands.x.element_type());
    }
    if (operands.sizes) p.sizes = static_cast<const int32_t*>(operands.sizes->untyped_data());
    p.w_codes = static_cast<const uint8_t*>(operands.weight[0].untyped_data());
    p.w_scales = static_cast<const uint8_t*>(operands.weight[1].untyped_data());
    p.y = y->untyped_data();
    p.workspace = static_cast<uint8_t*>(workspace->untyped_data());
    p.workspace_bytes = static_cast<int64_t>(workspace->size_bytes());
    run(p, cuda::device(device), stream);
  });
}

auto binding() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<cudaStream_t>>()
      .Ctx<ffi::DeviceOrdinal>()
      .RemainingArgs()
      .Ret<ffi::AnyBuffer>()
      .Ret<ffi::AnyBuffer>()
      .Attr<int64_t>("n")
      .Attr<int64_t>("k")
      .Attr<int64_t>("block")
      .Attr<std::string_view>("tile");
}

constexpr ffi::Traits kCommandBuffer = ffi::Traits::kCmdBufferCompatible;

XLA_FFI_DEFINE_HANDLER(kDense, product<Kind::kDense>, binding(), {kCommandBuffer});
XLA_FFI_DEFINE_HANDLER(kGrouped, product<Kind::kGrouped>, binding(), {kCommandBuffer});
XLA_FFI_DEFINE_HANDLER(kMasked, product<Kind::kMasked>, binding(), {kCommandBuffer});

}  // namespace

std::map<std::string, XLA_FFI_Handler*> targets() {
  return {
      {"jax_w4a8_sm100_dense_v1", kDense},
      {"jax_w4a8_sm100_grouped_v1", kGrouped},
      {"jax_w4a8_sm100_masked_v1", kMasked},
      {"jax_w4a8_sm100_quantize_v1", cuda::kCudaQuantize},
      {"jax_w4a8_sm100_silu_mul_quantize_v1", cuda::kCudaSiluMulQuantize},
  };
}

}  // namespace jax_w4a8::sm100
