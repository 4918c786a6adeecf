#include "csrc/ffi/operands.h"

#include <sstream>
#include <utility>

namespace jax_w4a8 {
namespace {

namespace ffi = ::xla::ffi;

Dims dims_of(ffi::AnyBuffer buffer) {
  return Dims(buffer.dimensions().begin(), buffer.dimensions().end());
}

// The arguments of a call, taken one after the other.
class Reader {
 public:
  explicit Reader(ffi::RemainingArgs arguments) : arguments_(arguments) {}

  ffi::AnyBuffer next() {
    auto buffer = arguments_.get<ffi::AnyBuffer>(position_++);
    if (!buffer.has_value())
      throw std::invalid_argument("jax_w4a8: operand " + std::to_string(position_ - 1) +
                                  " is no array");
    return *buffer;
  }

 private:
  ffi::RemainingArgs arguments_;
  size_t position_ = 0;
};

}  // namespace

Dims Description::per_row(int64_t last) const {
  return kind == Kind::kMasked ? Dims{groups, m, last} : Dims{m, last};
}

Dims Description::per_group(Dims last) const {
  if (kind != Kind::kDense) last.insert(last.begin(), groups);
  return last;
}

std::string to_string(ffi::DataType type) {
  std::ostringstream text;
  text << type;
  return text.str();
}

std::string to_string(const Dims& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
  return text + "]";
}

void check_buffer(const char* name, ffi::AnyBuffer buffer, ffi::DataType type, const Dims& dims) {
  if (buffer.element_type() == type && dims_of(buffer) == dims) return;
  throw std::invalid_argument(std::string("jax_w4a8: ") + name + ": expected " + to_string(type) +
                              to_string(dims) + ", got " + to_string(buffer.element_type()) +
                              to_string(dims_of(buffer)));
}

void check_float(const char* name, ffi::DataType type) {
  if (type == ffi::DataType::F32 || type == ffi::DataType::BF16 || type == ffi::DataType::F16)
    return;
  throw std::invalid_argument(std::string("jax_w4a8: ") + name +
                              ": expected F32, BF16 or F16, got " + to_string(type));
}

void check_block(int64_t block) {
  if (block == 0 || block == 32 || block == 128) return;
  throw std::invalid_argument("jax_w4a8: block: expected 32, 128 or 0 (a whole row), got " +
                              std::to_string(block));
}

Operands read_operands(Kind kind, ffi::RemainingArgs arguments, size_t weight_arrays,
                       ffi::AnyBuffer y, int64_t n, int64_t k, int64_t block) {
  const size_t sizes = kind == Kind::kDense ? 0 : 1;
  const size_t x_arrays = arguments.size() - sizes - weight_arrays;
  if (x_arrays != 1 && x_arrays != 2) {
    throw std::invalid_argument("jax_w4a8: expected " + std::to_string(1 + sizes + weight_arrays) +
                                " operands, or one more with quantised activations, got " +
                                std::to_string(arguments.size()));
  }
  check_block(block);
  if (n < 1 || k < 1) {
    throw std::invalid_argument("jax_w4a8: n and k: expected positive numbers, got " +
                                std::to_string(n) + " and " + std::to_string(k));
  }
  Reader reader(arguments);
  Operands operands{{kind, 0, n, k, block, 1}, reader.next(), {}, {}, {}};
  Description& description = operands.description;

  const Dims x = dims_of(operands.x);
  if (x.size() != (kind == Kind::kMasked ? 3 : 2)) {
    throw std::invalid_argument("jax_w4a8: x: expected " +
                                std::string(kind == Kind::kMasked ? "[E, Mmax, K]" : "[M, K]") +
                                ", got " + to_string(x));
  }
  description.m = x[x.size() - 2];
  if (x_arrays == 2) operands.x_scales = reader.next();
  if (sizes == 1) {
    operands.sizes = reader.next();
    const Dims dims = dims_of(*operands.sizes);
    description.groups = dims.empty() ? 0 : dims[0];
    check_buffer("group sizes", *operands.sizes, ffi::DataType::S32, {description.groups});
  }
  if (operands.x_scales) {
    check_buffer("x codes", operands.x, ffi::DataType::F8E4M3FN, description.per_row(k));
    check_buffer("x scales", *operands.x_scales, ffi::DataType::U8,
                 description.per_row(description.x_blocks()));
  } else {
    check_float("x", operands.x.element_type());
    check_buffer("x", operands.x, operands.x.element_type(), description.per_row(k));
  }
  check_float("result", y.element_type());
  check_buffer("result", y, y.element_type(), description.per_row(n));
  for (size_t i = 0; i < weight_arrays; ++i) operands.weight.push_back(reader.next());
  return operands;
}

}  // namespace jax_w4a8
