#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "csrc/cuda/quantize.h"
#include "csrc/sm100/layout.h"

namespace jax_w4a8::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnit = 128;  // elements along K that a group of threads takes together
constexpr int kShare = 16;  // of them, one thread's
constexpr int kUnitThreads = kUnit / kShare;
constexpr int kBlockThreads = 32 / kShare;  // threads that share a block of 32
constexpr int kMostRowThreads = 512;
constexpr int kHeldShares = 2;  // shares of a row that a thread keeps in registers
constexpr uint32_t kFull = 0xFFFFFFFF;
constexpr uint32_t kInfinity = 0x7F800000, kMinNormal = 0x00800000;
constexpr uint32_t kScaleNaN = 255, kScaleOne = 127;

// What the kernels are told; the same in all of them.
struct Params {
  QuantizeArguments a;
  int units;   // groups of kUnit that a row of codes has
  int blocks;  // scales of a row in the plain layout
};

__device__ float to_float(float value) { return value; }
__device__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ float to_float(__half value) { return __half2float(value); }
__device__ void from_float(float value, float& to) { to = value; }
__device__ void from_float(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }
__device__ void from_float(float value, __half& to) { to = __float2half_rn(value); }

// x * 2^n with subnormal operands and results as zeros of their sign, whatever the compiler's
// flags.
__device__ float scale_flushing(float x, float power) {
  float y;
  asm("mul.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(power));
  return y;
}

// Elements [k0, k0 + kShare) of a row, zero past its end.
template <class T, bool kVector>
__device__ void load(const void* x, int64_t row, int k, int k0, T (&values)[kShare]) {
  const T* from = static_cast<const T*>(x) + row * k + k0;
  if constexpr (kVector) {
    constexpr int kWidth = 16 / sizeof(T);
#pragma unroll
    for (int i = 0; i < kShare; i += kWidth) {
      // A row is a whole number of vectors.
      uint4 vector = {};
      if (k0 + i < k) vector = __ldcs(reinterpret_cast<const uint4*>(from + i));
      *reinterpret_cast<uint4*>(&values[i]) = vector;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      from_float(0, values[i]);
      if (k0 + i < k) values[i] = from[i];
    }
  }
}

// The numbers to quantise.
template <bool kSilu, bool kVector, class T>
__device__ void load_numbers(const QuantizeArguments& a, int64_t row, int k0,
                             T (&numbers)[kShare]) {
  load<T, kVector>(a.x, row, a.k, k0, numbers);
  if constexpr (kSilu) {
    alignas(16) T up[kShare];
    load<T, kVector>(a.up, row, a.k, k0, up);
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const float gate = to_float(numbers[i]);
      from_float(gate / (1 + expf(-gate)) * to_float(up[i]), numbers[i]);
    }
  }
}

template <class T>
__device__ uint32_t largest_magnitude(const T (&numbers)[kShare]) {
  uint32_t largest = 0;
#pragma unroll
  for (T number : numbers) largest = max(largest, __float_as_uint(to_float(number)) & 0x7FFFFFFF);
  return largest;
}

// UE8M0 byte of 2^ceil(log2(amax / 448)), from the bits of amax; 448 = 2^8 * 1.75.
__device__ uint32_t scale_byte(uint32_t amax) {
  if (amax >= kInfinity) return kScaleNaN;
  if (amax < kMinNormal) return kScaleOne;
  const int byte = static_cast<int>(amax >> 23) - 8 + ((amax & 0x7FFFFF) > 0x600000);
  return max(byte, 0);
}

// Writes the codes of elements [k0, k0 + kShare), zero past k.
template <bool kVector, class T>
__device__ void store_codes(const QuantizeArguments& a, int64_t row, int k0, uint32_t scale,
                            const T (&numbers)[kShare]) {
  alignas(16) uint8_t codes[kShare];
  // Finite blocks have scales of at most 2^120: the inverse is a normal number.
  const float inverse = __uint_as_float((254 - min(scale, 254u)) << 23);
#pragma unroll
  for (int i = 0; i < kShare; i += 2) {
    const float2 pair = {scale_flushing(to_float(numbers[i]), inverse),
                         scale_flushing(to_float(numbers[i + 1]), inverse)};
    *reinterpret_cast<__nv_fp8x2_storage_t*>(&codes[i]) =
        __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
  }
  if (scale == kScaleNaN) {
#pragma unroll
    for (int i = 0; i < kShare; ++i) codes[i] = k0 + i < a.k ? 0x7F : 0;
  }
  uint8_t* to = a.codes + row * a.code_stride + k0;
  if constexpr (kVector) {
    if (k0 < a.code_stride) *reinterpret_cast<uint4*>(to) = *reinterpret_cast<uint4*>(codes);
  } else {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      if (k0 + i < a.code_stride) to[i] = codes[i];
    }
  }
}

__device__ void store_swizzled(const Params& p, int64_t row, int unit, uint32_t four_scales) {
  *reinterpret_cast<uint32_t*>(p.a.scales + sm100::scale_offset(row, unit, p.units)) = four_scales;
}

// The row of the scales that `row` has, or -1.
__device__ int64_t scale_row(const QuantizeArguments& a, int64_t row) {
  return a.scale_rows == nullptr ? row : a.scale_rows[row];
}

// Blocks of 32 or 128: kUnitThreads threads take a unit of a row.
template <class T, bool kSilu, bool kVector>
__global__ void __launch_bounds__(kThreads) quantize_units(const __grid_constant__ Params p) {
  const uint32_t unit_index = blockIdx.x * (kThreads / kUnitThreads) + threadIdx.x / kUnitThreads;
  const int64_t row = unit_index / p.units;
  const int unit = unit_index % p.units, lane = threadIdx.x % kUnitThreads;
  const int k0 = unit * kUnit + lane * kShare;
  const int64_t to = row < p.a.rows ? scale_row(p.a, row) : -1;
  // Threads without a row stay for the shuffles.
  alignas(16) T numbers[kShare] = {};
  if (to >= 0) load_numbers<kSilu, kVector>(p.a, row, k0, numbers);
  uint32_t amax = largest_magnitude(numbers);
  const int sharers = p.a.block == 32 ? kBlockThreads : kUnitThreads;
  for (int step = 1; step < sharers; step *= 2)
    amax = max(amax, __shfl_xor_sync(kFull, amax, step));
  const uint32_t scale = scale_byte(amax);
  if (p.a.layout == ScaleLayout::kSwizzled) {
    uint32_t four = scale * 0x01010101;
    if (p.a.block == 32) {
      four = scale << (lane / kBlockThreads * 8);
      for (int step = kBlockThreads; step < kUnitThreads; step *= 2) {
        four |= __shfl_xor_sync(kFull, four, step);
      }
    }
    if (to >= 0 && lane == 0) store_swizzled(p, to, unit, four);
  } else if (to >= 0 && lane % sharers == 0 && k0 < p.a.k) {
    p.a.scales[row * p.blocks + k0 / p.a.block] = static_cast<uint8_t>(scale);
  }
  if (to >= 0) store_codes<kVector>(p.a, row, k0, scale, numbers);
}

// One scale a row: a thread block takes a row, and reads again what of it does not fit its
// registers.
template <class T, bool kSilu, bool kVector>
__global__ void __launch_bounds__(kMostRowThreads) quantize_rows(const __grid_constant__ Params p) {
  const int64_t row = blockIdx.x, to = scale_row(p.a, row);
  if (to < 0) return;
  __shared__ uint32_t row_amax;
  if (threadIdx.x == 0) row_amax = 0;
  __syncthreads();
  const int first = threadIdx.x * kShare, step = blockDim.x * kShare;
  alignas(16) T held[kHeldShares][kShare], numbers[kShare];
  uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < kHeldShares; ++i) {
    load_numbers<kSilu, kVector>(p.a, row, first + i * step, held[i]);
  }
#pragma unroll
  for (int i = 0; i < kHeldShares; ++i) amax = max(amax, largest_magnitude(held[i]));
  for (int k0 = first + kHeldShares * step; k0 < p.a.k; k0 += step) {
    load_numbers<kSilu, kVector>(p.a, row, k0, numbers);
    amax = max(amax, largest_magnitude(numbers));
  }
  amax = __reduce_max_sync(kFull, amax);
  if (threadIdx.x % 32 == 0) atomicMax(&row_amax, amax);
  __syncthreads();
  const uint32_t scale = scale_byte(row_amax);
#pragma unroll
  for (int i = 0; i < kHeldShares; ++i) {
    store_codes<kVector>(p.a, row, first + i * step, scale, held[i]);
  }
  for (int k0 = first + kHeldShares * step; k0 < p.a.code_stride; k0 += step) {
    load_numbers<kSilu, kVector>(p.a, row, k0, numbers);
    store_codes<kVector>(p.a, row, k0, scale, numbers);
  }
  if (p.a.layout == ScaleLayout::kSwizzled) {
    for (int unit = threadIdx.x; unit < p.units; unit += blockDim.x) {
      store_swizzled(p, to, unit, scale * 0x01010101);
    }
  } else if (threadIdx.x == 0) {
    p.a.scales[row] = static_cast<uint8_t>(scale);
  }
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

template <class T, bool kSilu, bool kVector>
cudaError_t launch(const Params& p, cudaStream_t stream) {
  if (p.a.block == 0) {
    const int threads = p.a.k > kThreads * kHeldShares * kShare ? kMostRowThreads : kThreads;
    quantize_rows<T, kSilu, kVector><<<p.a.rows, threads, 0, stream>>>(p);
  } else {
    const int64_t threads = p.a.rows * p.units * kUnitThreads;
    const auto grid = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
    quantize_units<T, kSilu, kVector><<<grid, kThreads, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

template <class T>
cudaError_t launch(const Params& p, cudaStream_t stream) {
  const QuantizeArguments& a = p.a;
  const bool vector = aligned(a.x) && aligned(a.up) && a.k * sizeof(T) % 16 == 0 &&
                      aligned(a.codes) && a.code_stride % 16 == 0;
  if (a.up == nullptr)
    return vector ? launch<T, false, true>(p, stream) : launch<T, false, false>(p, stream);
  return vector ? launch<T, true, true>(p, stream) : launch<T, true, false>(p, stream);
}

}  // namespace

cudaError_t quantize(const QuantizeArguments& a, cudaStream_t stream) {
  const bool swizzled = a.layout == ScaleLayout::kSwizzled;
  const Params p{a, (a.code_stride + kUnit - 1) / kUnit, blocks_along(a.k, a.block)};
  if (a.rows < 0 || a.k <= 0 || a.code_stride < a.k ||
      (a.block != 32 && a.block != 128 && a.block != 0) ||
      (swizzled && a.code_stride % kUnit != 0) || (!swizzled && a.scale_rows != nullptr) ||
      a.rows * p.units >= int64_t{1} << 31) {
    return cudaErrorInvalidValue;
  }
  if (a.rows == 0) return cudaSuccess;
  switch (a.type) {
    case Float::kF32:
      return launch<float>(p, stream);
    case Float::kBF16:
      return launch<__nv_bfloat16>(p, stream);
    case Float::kF16:
      return launch<__half>(p, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace jax_w4a8::cuda
