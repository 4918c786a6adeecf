// Times the SM90 kernels inside CUDA graphs, weights cold in L2, beside the time in which one
// launch streams the same bytes. docs/sm90.md says how to build and run it.
//
//   sm90_kernels dense M N K [block]            every tile and split, and the choice
//   sm90_kernels grouped ROWS GROUPS N K [block]
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "csrc/sm90/kernels.h"
#include "csrc/sm90/layout.h"
#include "csrc/sm90/product.h"

using namespace jax_w4a8;
using namespace jax_w4a8::sm90;

namespace {

void check(cudaError_t error, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "line %d: %s\n", line, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(call) check(call, __LINE__)

template <class T>
T* allocate(size_t count) {
  void* p;
  CHECK(cudaMalloc(&p, count * sizeof(T) + 16));
  return static_cast<T*>(p);
}

__device__ uint32_t hash(uint64_t i) {
  uint32_t x = static_cast<uint32_t>(i * 2654435761u + (i >> 32));
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

// Random codes, and exponents that spread over six binades of a row.
__global__ void fill_units(uint8_t* units, size_t bytes, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < bytes;
       i += size_t{gridDim.x} * blockDim.x) {
    const uint32_t r = hash(i + (uint64_t{seed} << 40));
    units[i] = i % kUnitBytes < kCodeBytes ? r & 0xFF : kTopIndex - r % 6;
  }
}

__global__ void fill_x(uint8_t* codes, size_t bytes) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < bytes;
       i += size_t{gridDim.x} * blockDim.x) {
    codes[i] = (hash(i) & 0x80) | (0x20 + hash(i + 77) % 0x50);
  }
}

__global__ void fill_floats(__nv_bfloat16* x, size_t count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    x[i] = __float2bfloat16(static_cast<int>(hash(i) % 2001) * 1e-3f - 1);
  }
}

constexpr int kChunk = 16384, kChunks = 6;

// Streams `bytes` into shared memory and does nothing with them.
__global__ void __launch_bounds__(128) stream(const uint8_t* from, size_t bytes, uint32_t* out) {
  extern __shared__ __align__(128) uint8_t smem[];
  __shared__ __align__(8) uint64_t bars[kChunks];
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(smem));
  const uint32_t bar = static_cast<uint32_t>(__cvta_generic_to_shared(bars));
  const size_t chunks = bytes / kChunk, begin = blockIdx.x * chunks / gridDim.x,
               end = (blockIdx.x + 1) * chunks / gridDim.x;
  if (threadIdx.x != 0) return;
  for (int i = 0; i < kChunks; ++i)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar + 8 * i));
  asm volatile("fence.mbarrier_init.release.cluster;");
  for (size_t c = begin; c < end + kChunks; ++c) {
    const int at = (c - begin) % kChunks;
    if (c >= begin + kChunks) {
      uint32_t done = 0;
      while (!done) {
        asm volatile(
            "{.reg .pred q; mbarrier.try_wait.parity.shared::cta.b64 q, [%1], %2; selp.u32 %0, 1, "
            "0, q;}"
            : "=r"(done)
            : "r"(bar + 8 * at), "r"(static_cast<uint32_t>((c - begin) / kChunks - 1) & 1));
      }
    }
    if (c < end) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar + 8 * at),
                   "r"(kChunk));
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
          "[%3];" ::"r"(to + at * kChunk),
          "l"(from + c * kChunk), "r"(kChunk), "r"(bar + 8 * at)
          : "memory");
    } else if (c + 1 >= begin + kChunks + (end - begin)) {
      break;
    }
  }
  if (smem[0] == 1 && smem[1] == 2 && smem[2] == 3 && smem[3] == 4 && smem[4] == 5) *out = 1;
}

// Microseconds of one of `count` launches in a graph.
double time_graph(cudaStream_t s, int count, const std::function<void(int)>& launch) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < count; ++i) launch(i);
  CHECK(cudaStreamEndCapture(s, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 9; ++i) {
    CHECK(cudaEventRecord(begin, s));
    CHECK(cudaGraphLaunch(exec, s));
    CHECK(cudaEventRecord(end, s));
    CHECK(cudaStreamSynchronize(s));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i > 1) times.push_back(ms * 1e3f / count);
  }
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "";
  const bool grouped = kind == "grouped";
  if ((!grouped && kind != "dense") || argc < (grouped ? 6 : 5)) {
    std::fprintf(stderr, "usage: dense M N K [block] | grouped ROWS GROUPS N K [block]\n");
    return 2;
  }
  const int m = std::atoi(argv[2]), groups = grouped ? std::atoi(argv[3]) : 1;
  const int n = std::atoi(argv[3 + grouped]), k = std::atoi(argv[4 + grouped]);
  const int block = argc > 5 + grouped ? std::atoi(argv[5 + grouped]) : 128;
  const size_t row_tiles = (n + kUnitRows - 1) / kUnitRows, k_units = (k + kUnitK - 1) / kUnitK;
  const size_t bytes = groups * row_tiles * k_units * kUnitBytes;
  const int copies = static_cast<int>(std::min<size_t>(8, 160000000 / bytes + 2));
  std::vector<uint8_t*> units(copies);
  for (int i = 0; i < copies; ++i)
    fill_units<<<2048, 256>>>(units[i] = allocate<uint8_t>(bytes), bytes, i);
  Product p = {};
  uint8_t* tops = allocate<uint8_t>(groups * row_tiles * kUnitRows);
  uint8_t* kinds = allocate<uint8_t>(groups * row_tiles);
  uint8_t* codes = allocate<uint8_t>(size_t(m) * k);
  uint8_t* scales = allocate<uint8_t>(size_t(m) * (k / 32 + 1));
  __nv_bfloat16* floats = allocate<__nv_bfloat16>(size_t(m) * k);
  CHECK(cudaMemset(tops, 123, groups * row_tiles * kUnitRows));
  CHECK(cudaMemset(kinds, 0, groups * row_tiles));
  CHECK(cudaMemset(scales, 120, size_t(m) * (k / 32 + 1)));
  fill_x<<<1024, 256>>>(codes, size_t(m) * k);
  fill_floats<<<1024, 256>>>(floats, size_t(m) * k);
  std::vector<int32_t> sizes(groups);
  std::mt19937 random(1);
  for (int i = 0; i < m; ++i) ++sizes[random() % groups];
  int32_t* device_sizes = allocate<int32_t>(groups);
  CHECK(cudaMemcpy(device_sizes, sizes.data(), groups * 4, cudaMemcpyHostToDevice));
  const size_t touched =
      grouped ? bytes / groups * (groups - std::count(sizes.begin(), sizes.end(), 0)) : bytes;

  p.kind = grouped ? Kind::kGrouped : Kind::kDense;
  p.m = m, p.n = n, p.k = k, p.groups = groups, p.block = block, p.out = Out::kBf16;
  p.sizes = device_sizes, p.tops = tops, p.kinds = kinds;
  p.y = allocate<uint16_t>(size_t(m) * n);
  p.workspace_bytes = size_t(m) * (k + k / 32 + 32) + 4096;
  p.workspace = allocate<uint8_t>(p.workspace_bytes);
  p.x_type = cuda::Float::kBF16;
  cudaStream_t s;
  CHECK(cudaStreamCreate(&s));
  const cuda::Device& device = cuda::device(0);
  const int launches =
      std::max(copies, bytes > 400000000 || size_t(m) * n * k > 50000000000 ? 4 : 32);

  uint32_t* out = allocate<uint32_t>(1);
  CHECK(
      cudaFuncSetAttribute(stream, cudaFuncAttributeMaxDynamicSharedMemorySize, kChunk * kChunks));
  const double floor = time_graph(s, launches, [&](int i) {
    stream<<<264, 128, kChunk * kChunks, s>>>(units[i % copies], touched, out);
  });
  std::printf("%s %dx%dx%d groups=%d block=%d  %.1f MB, streaming alone %.2f us\n", kind.c_str(), m,
              n, k, groups, block, touched * 1e-6, floor);

  std::vector<uint16_t> first, y(size_t(m) * n);
  auto time_one = [&](const std::string& tile, int split) {
    p.tile = tile;
    p.split = split;
    CHECK(cudaMemset(p.y, 0xFF, y.size() * 2));
    auto launch = [&](int i) {
      p.units = units[i % copies];
      run(p, device, s);
    };
    p.x = codes, p.x_scales = scales;
    const double product = time_graph(s, launches, launch);
    launch(0);
    CHECK(cudaStreamSynchronize(s));
    CHECK(cudaMemcpy(y.data(), p.y, y.size() * 2, cudaMemcpyDeviceToHost));
    if (first.empty()) first = y;
    double worst = 0, largest = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      auto value = [](uint16_t bits) {
        uint32_t u = uint32_t{bits} << 16;
        float f;
        memcpy(&f, &u, 4);
        return f;
      };
      const double difference = std::abs(double{value(y[i])} - value(first[i]));
      worst = difference <= worst ? worst : difference;
      if (difference != difference) worst = 1e30;
      largest = std::max(largest, std::abs(double{value(first[i])}));
    }
    p.x = floats, p.x_scales = nullptr;
    const double whole = time_graph(s, launches, launch);
    std::printf(
        "  %-13s split %d  product %8.2f us  with quantising %8.2f us  %6.2f TB/s %7.1f TFLOP/s  "
        "differs %.1e\n",
        tile.empty() ? "chosen" : tile.c_str(), split, product, whole, touched / product * 1e-6,
        2.0 * m * n * k / product * 1e-6, worst / largest);
    std::fflush(stdout);
  };
  for (const Kernel* kernel : kernels()) {
    if (kernel->tile.fine != (block == 32)) continue;
    for (int split : {1, 2, 4}) {
      if (4 * kernel->tile.row_tiles % split || (split > 1 && grouped)) continue;
      if (size_t(m) * n * k > 10000000000 && (kernel->tile.tokens < 64 || split > 1)) continue;
      time_one(std::string(kernel->tile.name), split);
    }
  }
  time_one("", 0);
}
