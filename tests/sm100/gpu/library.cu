// The device code that needs no Blackwell instruction, callable from Python: check.py beside this
// compiles it for the GPU at hand.
#include "csrc/cuda/quantize.cu"
#include "csrc/sm100/prepare.cu"

namespace cuda = jax_w4a8::cuda;
namespace sm100 = jax_w4a8::sm100;

extern "C" {

int quantize(const void* x, const void* up, int type, int64_t rows, int k, int block, void* codes,
             int code_stride, void* scales, int swizzled, const void* scale_rows) {
  cuda::QuantizeArguments a = {};
  a.x = x;
  a.up = up;
  a.type = static_cast<cuda::Float>(type);
  a.rows = rows;
  a.k = k;
  a.block = block;
  a.codes = static_cast<uint8_t*>(codes);
  a.code_stride = code_stride;
  a.scales = static_cast<uint8_t*>(scales);
  a.layout = swizzled ? cuda::ScaleLayout::kSwizzled : cuda::ScaleLayout::kPlain;
  a.scale_rows = static_cast<const int32_t*>(scale_rows);
  return cuda::quantize(a, nullptr);
}

int prepare_groups(const void* sizes, int groups, int m, int masked, void* result, void* scale_rows,
                   void* y, int64_t y_row_bytes) {
  return sm100::prepare_groups(
      {static_cast<const int32_t*>(sizes), groups, m, masked != 0,
       static_cast<sm100::Group*>(result), static_cast<int32_t*>(scale_rows),
       static_cast<uint8_t*>(y), y_row_bytes},
      nullptr);
}

int relayout(const void* codes, const void* scales, int64_t rows, int k, int block,
             const void* scale_rows, void* padded_codes, void* swizzled_scales) {
  return sm100::relayout(
      {static_cast<const uint8_t*>(codes), static_cast<const uint8_t*>(scales), rows, k, block,
       static_cast<const int32_t*>(scale_rows), static_cast<uint8_t*>(padded_codes),
       static_cast<uint8_t*>(swizzled_scales)},
      nullptr);
}
}
