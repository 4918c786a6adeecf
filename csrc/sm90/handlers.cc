#include "csrc/sm90/handlers.h"

#include <string_view>

#include "csrc/cuda/handlers.h"
#include "csrc/ffi/operands.h"
#include "csrc/sm90/layout.h"
#include "csrc/sm90/product.h"

namespace jax_w4a8::sm90 {
namespace {

namespace ffi = ::xla::ffi;

Out out_of(ffi::DataType type) {
  if (type == ffi::DataType::F32) return Out::kF32;
  return type == ffi::DataType::BF16 ? Out::kBf16 : Out::kF16;
}

Kind kind_of(jax_w4a8::Kind kind) {
  if (kind == jax_w4a8::Kind::kDense) return Kind::kDense;
  return kind == jax_w4a8::Kind::kGrouped ? Kind::kGrouped : Kind::kMasked;
}

void check_weight(const Operands& operands) {
  const Description& d = operands.description;
  const int64_t row_tiles = (d.n + kUnitRows - 1) / kUnitRows, units = (d.k + kUnitK - 1) / kUnitK;
  check_buffer("weight units", operands.weight[0], ffi::DataType::U8,
               d.per_group({row_tiles, units, kUnitBytes}));
  check_buffer("weight tops", operands.weight[1], ffi::DataType::U8,
               d.per_group({row_tiles, kUnitRows}));
  check_buffer("weight kinds", operands.weight[2], ffi::DataType::U8, d.per_group({row_tiles}));
}

const uint8_t* bytes(const ffi::AnyBuffer& buffer) {
  return static_cast<const uint8_t*>(buffer.untyped_data());
}

template <jax_w4a8::Kind kind>
ffi::Error product(cudaStream_t stream, int32_t device, ffi::RemainingArgs arguments,
                   ffi::Result<ffi::AnyBuffer> y, ffi::Result<ffi::AnyBuffer> workspace, int64_t n,
                   int64_t k, int64_t block, std::string_view tile, int64_t split) {
  return guarded([&] {
    const Operands operands = read_operands(kind, arguments, /*weight_arrays=*/3, *y, n, k, block);
    check_weight(operands);
    const Description& d = operands.description;
    Product p = {};
    p.kind = kind_of(kind);
    p.m = d.m;
    p.n = n;
    p.k = k;
    p.groups = d.groups;
    p.block = static_cast<int>(block);
    p.out = out_of(y->element_type());
    p.tile = tile;
    p.split = static_cast<int>(split);
    p.x = operands.x.untyped_data();
    if (operands.x_scales) {
      p.x_scales = bytes(*operands.x_scales);
    } else {
      p.x_type = cuda::float_type(operands.x.element_type());
    }
    if (operands.sizes) p.sizes = static_cast<const int32_t*>(operands.sizes->untyped_data());
    p.units = bytes(operands.weight[0]);
    p.tops = bytes(operands.weight[1]);
    p.kinds = bytes(operands.weight[2]);
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
      .Attr<std::string_view>("tile")
      .Attr<int64_t>("split");
}

constexpr ffi::Traits kCommandBuffer = ffi::Traits::kCmdBufferCompatible;

XLA_FFI_DEFINE_HANDLER(kDense, product<jax_w4a8::Kind::kDense>, binding(), {kCommandBuffer});
XLA_FFI_DEFINE_HANDLER(kGrouped, product<jax_w4a8::Kind::kGrouped>, binding(), {kCommandBuffer});
XLA_FFI_DEFINE_HANDLER(kMasked, product<jax_w4a8::Kind::kMasked>, binding(), {kCommandBuffer});

}  // namespace

std::map<std::string, XLA_FFI_Handler*> targets() {
  return {
      {"jax_w4a8_sm90_dense_v1", kDense},
      {"jax_w4a8_sm90_grouped_v1", kGrouped},
      {"jax_w4a8_sm90_masked_v1", kMasked},
      {"jax_w4a8_sm90_quantize_v1", cuda::kCudaQuantize},
      {"jax_w4a8_sm90_silu_mul_quantize_v1", cuda::kCudaSiluMulQuantize},
  };
}

}  // namespace jax_w4a8::sm90
