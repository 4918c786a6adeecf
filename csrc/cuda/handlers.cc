#include "csrc/cuda/handlers.h"

#include <stdexcept>
#include <string>

#include "csrc/cuda/checks.h"
#include "csrc/ffi/operands.h"

namespace jax_w4a8::cuda {
namespace {

namespace ffi = ::xla::ffi;

void run(cudaStream_t stream, ffi::AnyBuffer x, const void* up, ffi::AnyBuffer codes,
         ffi::AnyBuffer scales, int64_t block) {
  check_float("x", x.element_type());
  check_block(block);
  Dims dims(x.dimensions().begin(), x.dimensions().end());
  if (dims.empty()) throw std::invalid_argument("jax_w4a8: x: expected [..., K], got a scalar");
  check_buffer("codes", codes, ffi::DataType::F8E4M3FN, dims);
  const int64_t k = dims.back();
  if (k >= int64_t{1} << 30) {
    throw std::invalid_argument("jax_w4a8: x: expected a K below 2^30, got " + std::to_string(k));
  }
  QuantizeArguments a = {};
  a.x = x.untyped_data();
  a.up = up;
  a.type = float_type(x.element_type());
  a.k = static_cast<int>(k);
  a.block = static_cast<int>(block);
  a.code_stride = a.k;
  dims.back() = blocks_along(a.k, a.block);
  check_buffer("scales", scales, ffi::DataType::U8, dims);
  a.codes = static_cast<uint8_t*>(codes.untyped_data());
  a.scales = static_cast<uint8_t*>(scales.untyped_data());
  if (x.element_count() == 0) return;
  a.rows = static_cast<int64_t>(x.element_count()) / k;
  check("quantising the activations", quantize(a, stream));
}

ffi::Error quantize_call(cudaStream_t stream, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> codes,
                         ffi::Result<ffi::AnyBuffer> scales, int64_t block) {
  return guarded([&] { run(stream, x, nullptr, *codes, *scales, block); });
}

ffi::Error silu_mul_quantize_call(cudaStream_t stream, ffi::AnyBuffer gate, ffi::AnyBuffer up,
                                  ffi::Result<ffi::AnyBuffer> codes,
                                  ffi::Result<ffi::AnyBuffer> scales, int64_t block) {
  return guarded([&] {
    const auto dims = gate.dimensions();
    check_buffer("up", up, gate.element_type(), Dims(dims.begin(), dims.end()));
    run(stream, gate, up.untyped_data(), *codes, *scales, block);
  });
}

}  // namespace

Float float_type(ffi::DataType type) {
  if (type == ffi::DataType::F32) return Float::kF32;
  return type == ffi::DataType::BF16 ? Float::kBF16 : Float::kF16;
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(kCudaQuantize, quantize_call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("block"),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(kCudaSiluMulQuantize, silu_mul_quantize_call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("block"),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace jax_w4a8::cuda
