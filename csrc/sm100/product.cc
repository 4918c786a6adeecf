#include "csrc/sm100/product.h"

#include <stdexcept>
#include <string>

#include "csrc/cuda/checks.h"
#include "csrc/sm100/kernels.h"
#include "csrc/sm100/prepare.h"

namespace jax_w4a8::sm100 {
namespace {

using cuda::check;
using cuda::check_alignment;
using cuda::refuse;

void check_shape(const Product& p) {
  if (p.k % kTileK != 0) {
    refuse("weight codes: expected K, the doubled last dimension, to be a multiple of " +
           std::to_string(kTileK) + ", got " + std::to_string(p.k) +
           "; jax_w4a8.prepack(w, layout=\"sm100\") pads it");
  }
  if (p.n % kColumnMultiple != 0) {
    refuse("weight codes: expected N, the last dimension but one, to be a multiple of " +
           std::to_string(kColumnMultiple) + ", got " + std::to_string(p.n) +
           "; jax_w4a8.prepack(w, layout=\"sm100\") pads it");
  }
  cuda::check_sizes(p.rows(), p.n, p.k, p.groups);
}

// The tile that was asked for, or the best.
const Tile& tile_for(const Product& p, int sm_count) {
  const bool grouped = p.groups > 0;
  if (p.tile.empty()) {
    const int64_t groups = grouped ? p.groups : 1;
    const int64_t m = grouped && !p.masked ? ceil_div(p.m, groups) : p.m;
    return choose_tile({m, p.n, p.k, groups, grouped}, sm_count);
  }
  std::string names;
  for (const Tile& tile : kTiles) {
    if (tile.grouped != grouped) continue;
    if (tile.name == p.tile) return tile;
    names += (names.empty() ? "" : ", ") + std::string(tile.name);
  }
  refuse("tile: expected one of " + names + ", or nothing, got '" + std::string(p.tile) + "'");
}

// The product's scratch, from where it is aligned.
struct Scratch {
  Workspace at;
  uint8_t* start;

  explicit Scratch(const Product& p) : at(p.m, p.k, p.groups, p.masked) {
    const auto address = reinterpret_cast<uintptr_t>(p.workspace);
    start = p.workspace + (round_up<uintptr_t>(address, kWorkspaceAlignment) - address);
    if (p.workspace_bytes >= at.bytes) return;
    refuse("workspace: expected at least " + std::to_string(at.bytes) + " bytes, got " +
           std::to_string(p.workspace_bytes));
  }

  uint8_t* codes() const { return start + at.codes; }
  uint8_t* scales() const { return start + at.scales; }
  int32_t* scale_rows() const { return reinterpret_cast<int32_t*>(start + at.scale_rows); }
  Group* groups() const { return reinterpret_cast<Group*>(start + at.groups); }
  uint8_t* kernel() const { return start + at.kernel; }
  int64_t kernel_bytes() const { return at.bytes - kWorkspaceAlignment - at.kernel; }
};

// Brings the activations into the kernels' form, and gives the address of the codes.
const void* prepare_activations(const Product& p, const Scratch& scratch, cudaStream_t stream) {
  const int32_t* scale_rows = p.groups > 0 ? scratch.scale_rows() : nullptr;
  if (p.x_scales == nullptr) {
    cuda::QuantizeArguments a = {};
    a.x = p.x;
    a.type = p.x_type;
    a.rows = p.rows();
    a.k = static_cast<int>(p.x_k);
    a.block = p.block;
    a.codes = scratch.codes();
    a.code_stride = static_cast<int>(p.k);
    a.scales = scratch.scales();
    a.layout = cuda::ScaleLayout::kSwizzled;
    a.scale_rows = scale_rows;
    check("quantising the activations", cuda::quantize(a, stream));
    return scratch.codes();
  }
  const bool as_they_are = p.x_k == p.k && reinterpret_cast<uintptr_t>(p.x) % 16 == 0;
  RelayoutArguments a = {};
  a.codes = static_cast<const uint8_t*>(p.x);
  a.scales = p.x_scales;
  a.rows = p.rows();
  a.k = static_cast<int>(p.x_k);
  a.block = p.block;
  a.scale_rows = scale_rows;
  a.padded_codes = as_they_are ? nullptr : scratch.codes();
  a.swizzled_scales = scratch.scales();
  check("laying out the activations", relayout(a, stream));
  return as_they_are ? p.x : scratch.codes();
}

void prepare(const Product& p, const Scratch& scratch, cudaStream_t stream) {
  GroupsArguments a = {};
  a.sizes = p.sizes;
  a.groups = static_cast<int>(p.groups);
  a.m = static_cast<int>(p.m);
  a.masked = p.masked;
  a.result = scratch.groups();
  a.scale_rows = scratch.scale_rows();
  a.y = static_cast<uint8_t*>(p.y);
  a.y_row_bytes = p.n * (p.out == Out::kF32 ? 4 : 2);
  check("finding the groups", prepare_groups(a, stream));
}

}  // namespace

void run(const Product& p, const cuda::Device& device, cudaStream_t stream) {
  check_shape(p);
  if (device.major != 10) cuda::refuse_device(device, "sm100", "10.x (B200, B300)");
  check_alignment("weight codes", p.w_codes, 32);
  check_alignment("weight scales", p.w_scales, 16);
  check_alignment("result", p.y, 16);
  const Tile& tile = tile_for(p, device.sm_count);
  if (p.rows() == 0) return;
  const Scratch scratch(p);
  const Kernel& kernel = find_kernel(tile, p.out);
  Launch launch = {};
  launch.m = static_cast<int>(p.m);
  launch.n = static_cast<int>(p.n);
  launch.k = static_cast<int>(p.k);
  launch.x_scales = scratch.scales();
  launch.w = p.w_codes;
  launch.w_scales = p.w_scales;
  launch.y = p.y;
  launch.group_count = static_cast<int>(p.groups);
  launch.groups = scratch.groups();
  launch.workspace = scratch.kernel();
  launch.device = device.ordinal;
  launch.sm_count = device.sm_count;
  launch.stream = stream;
  const auto needed = static_cast<int64_t>(kernel.workspace_bytes(launch));
  if (needed > scratch.kernel_bytes()) {
    refuse("workspace: the kernel " + std::string(tile.name) + " needs " + std::to_string(needed) +
           " bytes of its own, and has " + std::to_string(scratch.kernel_bytes()));
  }
  if (p.groups > 0) prepare(p, scratch, stream);
  launch.x = prepare_activations(p, scratch, stream);
  const char* failure = kernel.run(launch);
  if (failure != nullptr) {
    throw std::runtime_error("jax_w4a8: the kernel " + std::string(tile.name) + ": " + failure);
  }
}

}  // namespace jax_w4a8::sm100
