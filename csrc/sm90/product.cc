#include "csrc/sm90/product.h"

#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "csrc/cuda/checks.h"
#include "csrc/sm90/kernels.h"
#include "csrc/sm90/layout.h"

namespace jax_w4a8::sm90 {
namespace {

// Shared memory that a thread block may have on compute capability 9.0.
constexpr int kSharedBytes = 232448;
constexpr int64_t kAlignment = 256;
// Token tiles whose activations stay in L2 while they are swept over the columns.
constexpr int kBandTokens = 2048;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

using cuda::check;
using cuda::refuse;

// E4M3 codes whose rows the tensor copy engine can take, and their scales.
struct Activations {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t row_bytes;
};

// Where the quantised activations go in the workspace.
struct Scratch {
  uint8_t* codes;
  uint8_t* scales;

  Scratch(const Product& p, int64_t row_bytes) {
    const auto address = reinterpret_cast<uintptr_t>(p.workspace);
    codes = p.workspace + (round_up(address, kAlignment) - address);
    scales = codes + round_up(p.rows() * row_bytes, kAlignment);
    const int64_t needed = kAlignment + round_up(p.rows() * row_bytes, kAlignment) +
                           p.rows() * cuda::blocks_along(p.k, p.block);
    if (p.workspace_bytes >= needed) return;
    refuse("workspace: expected at least " + std::to_string(needed) + " bytes, got " +
           std::to_string(p.workspace_bytes));
  }
};

Activations given_activations(const Product& p) {
  cuda::check_alignment("x codes", p.x, 16);
  if (p.k % 16 != 0)
    refuse("x codes: expected a K that is a multiple of 16, got " + std::to_string(p.k));
  return {static_cast<const uint8_t*>(p.x), p.x_scales, p.k};
}

Activations quantized_activations(const Product& p, cudaStream_t stream) {
  const int64_t row_bytes = round_up(p.k, 16);
  const Scratch scratch(p, row_bytes);
  cuda::QuantizeArguments a = {};
  a.x = p.x;
  a.type = p.x_type;
  a.rows = p.rows();
  a.k = static_cast<int>(p.k);
  a.block = p.block;
  a.codes = scratch.codes;
  a.code_stride = static_cast<int>(row_bytes);
  a.scales = scratch.scales;
  check("quantising the activations", cuda::quantize(a, stream));
  return {scratch.codes, scratch.scales, row_bytes};
}

// The driver's function, which a program that links the runtime statically has to ask for.
decltype(&cuTensorMapEncodeTiled) encoder() {
  static const auto function = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found;
    check("looking up cuTensorMapEncodeTiled",
          cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000,
                                           cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess)
      throw std::runtime_error("jax_w4a8: the CUDA driver is too old, 12.0 is needed");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(address);
  }();
  return function;
}

// Boxes of `tokens` rows by a unit's K, zeros past the ends.
CUtensorMap tensor_map(const Activations& x, int64_t rows, int tokens) {
  CUtensorMap map;
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(x.row_bytes), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(x.row_bytes)};
  const cuuint32_t box[2] = {kUnitK, static_cast<cuuint32_t>(tokens)}, steps[2] = {1, 1};
  const CUresult result =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<uint8_t*>(x.codes), dims,
                strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error(
        "jax_w4a8: describing the activations to the copy engine failed with CUDA error " +
        std::to_string(result));
  }
  return map;
}

Extent extent_of(const Product& p) {
  int64_t m = p.m;
  if (p.kind == Kind::kGrouped) {
    // Most groups have fewer rows than this, when rows fall on groups at random.
    const double mean = static_cast<double>(p.m) / p.groups;
    m = static_cast<int64_t>(std::ceil(mean + 2 * std::sqrt(mean)));
  }
  return {m, p.n, p.k, p.groups, p.block == 32, p.kind == Kind::kDense};
}

// The tile and split that were asked for, or the best.
Choice choice_for(const Product& p, int sm_count) {
  const Extent extent = extent_of(p);
  Choice choice = {nullptr, 1};
  if (p.tile.empty()) {
    choice = choose_tile(extent, sm_count);
  } else {
    std::string names;
    for (const Tile& tile : kTiles) {
      if (tile.fine != extent.fine) continue;
      if (tile.name == p.tile) choice = {&tile, choose_split(tile, extent, sm_count)};
      names += (names.empty() ? "" : ", ") + std::string(tile.name);
    }
    if (choice.tile == nullptr) {
      refuse("tile: expected one of " + names + ", or nothing, got '" + std::string(p.tile) + "'");
    }
  }
  if (p.split == 0) return choice;
  if (p.split != 1 && p.kind != Kind::kDense) {
    refuse("split: expected 0 or 1 in a product of groups, got " + std::to_string(p.split));
  }
  if (p.split < 0 || p.split > 8 || 4 * choice.tile->row_tiles % p.split != 0) {
    refuse("split: expected a divisor of " + std::to_string(4 * choice.tile->row_tiles) +
           " up to 8, or 0, got " + std::to_string(p.split));
  }
  choice.split = p.split;
  return choice;
}

int stages_of(const Kernel& kernel, const Product& p) {
  const int64_t tables = p.kind == Kind::kDense ? 0 : (3 * p.groups + 1) * 4;
  const int64_t stages = (kSharedBytes - kernel.fixed_bytes - tables) / kernel.stage_bytes;
  if (stages < 2) {
    refuse("weight: its " + std::to_string(p.groups) +
           " groups are more than the sm90 kernels can list");
  }
  return static_cast<int>(std::min<int64_t>(stages, kernel.most_stages));
}

Params params_of(const Product& p, const Activations& x, const Tile& tile) {
  Params params = {};
  params.x_codes = x.codes;
  params.x_scales = x.scales;
  params.sizes = p.sizes;
  params.units = p.units;
  params.tops = p.tops;
  params.kinds = p.kinds;
  params.y = p.y;
  params.kind = p.kind;
  params.out = p.out;
  params.x_rows = static_cast<int>(p.rows());
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.n);
  params.k = static_cast<int>(x.row_bytes);
  params.groups = static_cast<int>(p.groups);
  params.block = p.block;
  params.x_blocks = cuda::blocks_along(static_cast<int>(p.k), p.block);
  params.row_tiles = static_cast<int>((p.n + kUnitRows - 1) / kUnitRows);
  params.k_units = static_cast<int>((p.k + kUnitK - 1) / kUnitK);
  params.band = std::max(kBandTokens / tile.tokens, 1);
  return params;
}

void launch(const Kernel& kernel, const CUtensorMap& map, Params params, const Product& p,
            const cuda::Device& device, cudaStream_t stream) {
  const int shared = params.stages * kernel.stage_bytes + kernel.fixed_bytes +
                     (p.kind == Kind::kDense ? 0 : (3 * params.groups + 1) * 4);
  check("preparing the kernel",
        cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  const int64_t row_steps = (params.row_tiles + kernel.tile.row_tiles - 1) / kernel.tile.row_tiles;
  // Rows spread over groups in the worst way end each group in a tile of its own.
  const int64_t token_tiles = (p.rows() + kernel.tile.tokens - 1) / kernel.tile.tokens +
                              (p.kind == Kind::kDense ? 0 : p.groups);
  const int64_t tiles = row_steps * token_tiles;
  // Blocks that share a tile end with it; others go on to further tiles.
  const int64_t clusters =
      params.split > 1 ? tiles : std::clamp<int64_t>(tiles, 1, device.sm_count);

  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = params.split;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  // Weights are fetched while the activations are quantised.
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(clusters * params.split));
  config.blockDim = dim3(kernel.threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = p.x_scales == nullptr ? 2 : 1;
  void* arguments[] = {const_cast<CUtensorMap*>(&map), &params};
  check("the product's kernel", cudaLaunchKernelExC(&config, kernel.function, arguments));
}

}  // namespace

void run(const Product& p, const cuda::Device& device, cudaStream_t stream) {
  cuda::check_sizes(p.rows(), p.n, p.k, p.groups);
  if (device.major != 9 || device.minor != 0) {
    cuda::refuse_device(device, "sm90", "9.0 (H100, H200)");
  }
  cuda::check_alignment("weight units", p.units, 16);
  cuda::check_alignment("weight tops", p.tops, 16);
  cuda::check_alignment("result", p.y, 16);
  const Choice choice = choice_for(p, device.sm_count);
  const Kernel& kernel = find_kernel(*choice.tile);
  const int stages = stages_of(kernel, p);
  if (p.rows() == 0) return;
  const Activations x =
      p.x_scales != nullptr ? given_activations(p) : quantized_activations(p, stream);
  const CUtensorMap map = tensor_map(x, p.rows(), choice.tile->tokens);
  Params params = params_of(p, x, *choice.tile);
  params.stages = stages;
  params.split = choice.split;
  launch(kernel, map, params, p, device, stream);
}

}  // namespace jax_w4a8::sm90
