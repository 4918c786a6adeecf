#include "csrc/sm100/prepare.h"

namespace jax_w4a8::sm100 {
namespace {

constexpr int kScanThreads = 1024;
constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr uint32_t kFull = 0xFFFFFFFF;

__device__ uint32_t scan_warp(uint32_t value, uint32_t most) {
  for (int step = 1; step < kWarp; step *= 2) {
    const uint32_t before = __shfl_up_sync(kFull, value, step);
    if (threadIdx.x % kWarp >= step) value = min(value + before, most);
  }
  return value;
}

// The sum of the values of this thread and of those in front; sums past `most`, which is below
// 2^31, count as `most`, so that none overflows.
__device__ uint32_t scan_block(uint32_t value, uint32_t most) {
  __shared__ uint32_t sums[kScanThreads / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  value = scan_warp(value, most);
  if (lane == kWarp - 1) sums[warp] = value;
  __syncthreads();
  if (warp == 0) sums[lane] = scan_warp(sums[lane], most);
  __syncthreads();
  if (warp > 0) value = min(value + sums[warp - 1], most);
  __syncthreads();
  return value;
}

// Groups of a grouped product lie end to end, in rows and in tiles of scales. One thread block.
__global__ void __launch_bounds__(kScanThreads)
    find_groups(const __grid_constant__ GroupsArguments a) {
  // Where the group of each thread ends, and in front of them where the one before the first does.
  __shared__ uint32_t row_ends[kScanThreads + 1], tile_ends[kScanThreads + 1];
  if (threadIdx.x == 0) row_ends[0] = tile_ends[0] = 0;
  for (int first = 0; first < a.groups; first += kScanThreads) {
    __syncthreads();
    const int group = first + threadIdx.x;
    const uint32_t rows_before = row_ends[0], tiles_before = tile_ends[0];
    const uint32_t size = group < a.groups ? min(max(a.sizes[group], 0), a.m) : 0;
    row_ends[threadIdx.x + 1] = min(rows_before + scan_block(size, a.m), a.m);
    __syncthreads();
    const uint32_t begin = row_ends[threadIdx.x], rows = row_ends[threadIdx.x + 1] - begin;
    const uint32_t tiles = ceil_div<uint32_t>(rows, kScaleTileRows);
    tile_ends[threadIdx.x + 1] = tiles_before + scan_block(tiles, 0x7FFFFFFF);
    if (group < a.groups) {
      a.result[group] = {static_cast<int32_t>(begin), static_cast<int32_t>(rows),
                         static_cast<int32_t>(tile_ends[threadIdx.x + 1] - tiles)};
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      row_ends[0] = row_ends[kScanThreads];
      tile_ends[0] = tile_ends[kScanThreads];
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    find_masked_groups(const __grid_constant__ GroupsArguments a) {
  const int group = blockIdx.x * kThreads + threadIdx.x;
  if (group >= a.groups) return;
  const int tiles = ceil_div<int>(a.m, kScaleTileRows);
  a.result[group] = {group * a.m, min(max(a.sizes[group], 0), a.m), group * tiles};
}

// The group that `row` lies in or behind: the last that begins at or in front of it.
__device__ int group_of(const GroupsArguments& a, int row) {
  if (a.masked) return row / a.m;
  int low = 0, high = a.groups;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (a.result[middle].first_row <= row ? low : high) = middle;
  }
  return low;
}

// A warp takes a row.
__global__ void __launch_bounds__(kThreads)
    map_rows(const __grid_constant__ GroupsArguments a, int rows) {
  const int row = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= rows) return;
  const Group group = a.result[group_of(a, row)];
  const int within = row - group.first_row;
  const bool used = within < group.rows;
  if (lane == 0) a.scale_rows[row] = used ? group.first_tile * kScaleTileRows + within : -1;
  if (used) return;
  uint4* y = reinterpret_cast<uint4*>(a.y + row * a.y_row_bytes);
  for (int i = lane; i < a.y_row_bytes / 16; i += kWarp) y[i] = {};
}

// The scales of kTileK elements of a row: 1 behind its end, where the codes are zero.
__device__ uint32_t four_scales(const RelayoutArguments& a, int64_t row, int unit) {
  const int blocks = a.block == 0 ? 1 : ceil_div(a.k, a.block);
  uint32_t four = 0;
  for (int i = 0; i < kTileK / kScaleBlock; ++i) {
    const int k = unit * kTileK + i * kScaleBlock;
    uint32_t scale = kScaleOne;
    if (k < a.k) scale = a.scales[row * blocks + (a.block == 0 ? 0 : k / a.block)];
    four |= scale << (8 * i);
  }
  return four;
}

// A thread takes four codes of a row, and one of kStep of them the scales; kStep is 1 where the
// codes stay where they are.
template <int kStep>
__global__ void __launch_bounds__(kThreads)
    relayout_words(const __grid_constant__ RelayoutArguments a, int units) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = index / (units * kStep);
  const int word = index % (units * kStep), unit = word / kStep;
  if (row >= a.rows) return;
  const int64_t to = a.scale_rows == nullptr ? row : a.scale_rows[row];
  if (to < 0) return;
  if (word % kStep == 0) {
    *reinterpret_cast<uint32_t*>(a.swizzled_scales + scale_offset(to, unit, units)) =
        four_scales(a, row, unit);
  }
  if constexpr (kStep > 1) {
    uint32_t codes = 0;
    for (int i = 0; i < 4; ++i) {
      const int k = 4 * word + i;
      if (k < a.k) codes |= uint32_t{a.codes[row * a.k + k]} << (8 * i);
    }
    reinterpret_cast<uint32_t*>(a.padded_codes)[index] = codes;
  }
}

template <int kStep>
void launch_relayout(const RelayoutArguments& a, cudaStream_t stream) {
  const int units = ceil_div(a.k, kTileK);
  const auto grid = static_cast<unsigned>(ceil_div<int64_t>(a.rows * units * kStep, kThreads));
  relayout_words<kStep><<<grid, kThreads, 0, stream>>>(a, units);
}

}  // namespace

cudaError_t prepare_groups(const GroupsArguments& a, cudaStream_t stream) {
  const int rows = a.masked ? a.groups * a.m : a.m;
  if (a.masked) {
    find_masked_groups<<<ceil_div(a.groups, kThreads), kThreads, 0, stream>>>(a);
  } else {
    find_groups<<<1, kScanThreads, 0, stream>>>(a);
  }
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  map_rows<<<ceil_div(rows, kThreads / kWarp), kThreads, 0, stream>>>(a, rows);
  return cudaGetLastError();
}

cudaError_t relayout(const RelayoutArguments& a, cudaStream_t stream) {
  if (a.padded_codes == nullptr) {
    launch_relayout<1>(a, stream);
  } else {
    launch_relayout<kTileK / 4>(a, stream);
  }
  return cudaGetLastError();
}

}  // namespace jax_w4a8::sm100
