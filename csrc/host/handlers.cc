#include "csrc/host/handlers.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "csrc/ffi/operands.h"
#include "csrc/host/isa.h"
#include "csrc/host/kernels.h"
#include "csrc/host/parallel.h"
#include "csrc/host/segments.h"

namespace jax_w4a8::host {
namespace {

namespace ffi = ::xla::ffi;

// Columns of the result that one task computes: its weights fit the second-level cache.
constexpr int64_t kColumns = 64;
// Rows that one task computes, and the bytes of laid out activations that exist at a time.
constexpr int64_t kRows = 256;
constexpr int64_t kLaidOutBytes = 32 << 20;

Float float_type(ffi::DataType type) {
  if (type == ffi::DataType::F32) return Float::kF32;
  return type == ffi::DataType::BF16 ? Float::kBF16 : Float::kF16;
}

int64_t size_of(Float type) { return type == Float::kF32 ? 4 : 2; }

// One product, computed panel by panel of its rows.
class Product {
 public:
  Product(ffi::ThreadPool& pool, const Operands& operands, ffi::AnyBuffer y)
      : pool_(pool),
        operands_(operands),
        shape_{operands.description.n, operands.description.k, operands.description.block},
        y_(static_cast<char*>(y.untyped_data())),
        y_type_(float_type(y.element_type())) {}

  void run(const std::vector<Segment>& segments) {
    clear_outside(segments);
    const int64_t row_bytes = 4 * kernels_.laid_out_size(shape_.k);
    const int64_t panel_rows = std::max(kRows, kLaidOutBytes / row_bytes);
    std::vector<Segment> panel;
    int64_t rows = 0;
    for (const Segment& piece : split(segments, kRows)) {
      if (rows + piece.end - piece.begin > panel_rows) {
        run_panel(panel, rows);
        panel.clear();
        rows = 0;
      }
      panel.push_back(piece);
      rows += piece.end - piece.begin;
    }
    if (rows > 0) run_panel(panel, rows);
  }

 private:
  char* y_row(int64_t row) const { return y_ + row * shape_.n * size_of(y_type_); }

  // Zeros for the rows that belong to no group.
  void clear_outside(const std::vector<Segment>& segments) {
    int64_t row = 0;
    auto clear_until = [&](int64_t end) { std::memset(y_row(row), 0, y_row(end) - y_row(row)); };
    for (const Segment& segment : segments) {
      clear_until(segment.begin);
      row = segment.end;
    }
    clear_until(operands_.description.rows());
  }

  void run_panel(const std::vector<Segment>& pieces, int64_t rows) {
    const int64_t laid_out_size = kernels_.laid_out_size(shape_.k);
    // 64 bytes more, to begin at a cache line.
    std::unique_ptr<float[]> storage(new float[rows * laid_out_size + 16]);
    float* laid_out = storage.get();
    while (reinterpret_cast<uintptr_t>(laid_out) % 64 != 0) ++laid_out;
    std::vector<int32_t> exponents(rows);
    const bool quantized = operands_.x_scales.has_value();
    std::vector<uint8_t> codes(quantized ? 0 : rows * shape_.k),
        scales(quantized ? 0 : rows * shape_.x_blocks());

    // A panel's rows are counted from 0, whichever rows of x they are.
    std::vector<int64_t> row_of_x;
    for (const Segment& piece : pieces) {
      for (int64_t row = piece.begin; row < piece.end; ++row) row_of_x.push_back(row);
    }
    auto row_at = [&](int64_t index) -> XRow {
      if (quantized) return given_row(row_of_x[index]);
      return {&codes[index * shape_.k], &scales[index * shape_.x_blocks()]};
    };
    parallel_for(pool_, rows, [&](int64_t index) {
      if (!quantized) {
        const Float type = float_type(operands_.x.element_type());
        const char* x = static_cast<const char*>(operands_.x.untyped_data()) +
                        row_of_x[index] * shape_.k * size_of(type);
        kernels_.quantize_row(x, type, shape_, &codes[index * shape_.k],
                              &scales[index * shape_.x_blocks()]);
      }
      exponents[index] =
          kernels_.lay_out_row(row_at(index), shape_, laid_out + index * laid_out_size);
    });

    std::vector<int64_t> first_row(1, 0);
    for (const Segment& piece : pieces)
      first_row.push_back(first_row.back() + piece.end - piece.begin);
    const int64_t column_tasks = (shape_.n + kColumns - 1) / kColumns;
    parallel_for(pool_, column_tasks * static_cast<int64_t>(pieces.size()), [&](int64_t task) {
      const Segment& piece = pieces[task / column_tasks];
      const int64_t first = first_row[task / column_tasks], n = task % column_tasks * kColumns;
      const XRow x = row_at(first);
      const Rows some = {laid_out + first * laid_out_size, &exponents[first],  x.codes, x.scales,
                         piece.end - piece.begin,          y_row(piece.begin), y_type_};
      kernels_.multiply(some, weight_of(piece.group), shape_, n, std::min(n + kColumns, shape_.n));
    });
  }

  XRow given_row(int64_t row) const {
    return {
        static_cast<const uint8_t*>(operands_.x.untyped_data()) + row * shape_.k,
        static_cast<const uint8_t*>(operands_.x_scales->untyped_data()) + row * shape_.x_blocks()};
  }

  Weight weight_of(int64_t group) const {
    const int64_t blocks = group * shape_.n * shape_.weight_blocks();
    return {static_cast<const uint8_t*>(operands_.weight[0].untyped_data()) + 16 * blocks,
            static_cast<const uint8_t*>(operands_.weight[1].untyped_data()) + blocks};
  }

  ffi::ThreadPool& pool_;
  const Operands& operands_;
  const Shape shape_;
  char* const y_;
  const Float y_type_;
  const Kernels& kernels_ = kernels();
};

std::vector<Segment> segments_of(const Operands& operands) {
  const Description& description = operands.description;
  if (description.kind == Kind::kDense) return {{0, 0, description.m}};
  const int32_t* sizes = static_cast<const int32_t*>(operands.sizes->untyped_data());
  const auto segments = description.kind == Kind::kGrouped ? grouped_segments : masked_segments;
  return segments(sizes, description.groups, description.m);
}

template <Kind kind>
ffi::Error product(ffi::ThreadPool pool, ffi::RemainingArgs arguments,
                   ffi::Result<ffi::AnyBuffer> y, int64_t n, int64_t k, int64_t block) {
  return guarded([&] {
    const Operands operands = read_operands(kind, arguments, /*weight_arrays=*/2, *y, n, k, block);
    const Description& description = operands.description;
    check_buffer("weight codes", operands.weight[0], ffi::DataType::U8,
                 description.per_group({n, description.k_padded() / 2}));
    check_buffer("weight scales", operands.weight[1], ffi::DataType::U8,
                 description.per_group({n, description.k_padded() / 32}));
    Product(pool, operands, *y).run(segments_of(operands));
  });
}

ffi::Error quantize(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> codes,
                    ffi::Result<ffi::AnyBuffer> scales, int64_t block) {
  return guarded([&] {
    check_float("x", x.element_type());
    check_block(block);
    Dims dims(x.dimensions().begin(), x.dimensions().end());
    if (dims.empty()) throw std::invalid_argument("jax_w4a8: x: expected [..., K], got a scalar");
    const Shape shape = {0, dims.back(), block};
    check_buffer("codes", *codes, ffi::DataType::F8E4M3FN, dims);
    dims.back() = shape.x_blocks();
    check_buffer("scales", *scales, ffi::DataType::U8, dims);

    const Float type = float_type(x.element_type());
    const int64_t rows = shape.k == 0 ? 0 : static_cast<int64_t>(x.element_count()) / shape.k;
    parallel_for(pool, rows, [&](int64_t row) {
      kernels().quantize_row(
          static_cast<const char*>(x.untyped_data()) + row * shape.k * size_of(type), type, shape,
          static_cast<uint8_t*>(codes->untyped_data()) + row * shape.k,
          static_cast<uint8_t*>(scales->untyped_data()) + row * shape.x_blocks());
    });
  });
}

auto binding() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .RemainingArgs()
      .Ret<ffi::AnyBuffer>()
      .Attr<int64_t>("n")
      .Attr<int64_t>("k")
      .Attr<int64_t>("block");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(kDense, product<Kind::kDense>, binding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(kGrouped, product<Kind::kGrouped>, binding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(kMasked, product<Kind::kMasked>, binding());
XLA_FFI_DEFINE_HANDLER_SYMBOL(kQuantize, quantize,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("block"));

}  // namespace jax_w4a8::host
