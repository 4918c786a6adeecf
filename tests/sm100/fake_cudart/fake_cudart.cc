#include "tests/sm100/fake_cudart/fake_cudart.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Device {
  int major = 10, minor = 0, sm_count = 148;
};

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};

// Function-local, because kernels register themselves before this file's own constructors may run.
std::map<const void*, std::string>& kernel_names() {
  static auto* const names = new std::map<const void*, std::string>;
  return *names;
}

std::mutex mutex;  // of everything below
std::map<int, Device> devices;
std::vector<std::string> launched;
int refused_tensor_maps = 0;
FakeLaunchCallback callback = nullptr;
thread_local std::vector<Configuration> configurations;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t launch(const void* function, dim3 grid, dim3 block, dim3 cluster, size_t shared_bytes,
                   cudaStream_t stream, void** arguments) {
  const auto found = kernel_names().find(function);
  if (found == kernel_names().end()) return cudaErrorInvalidDeviceFunction;
  FakeLaunchCallback run;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    launched.push_back(found->second);
    run = callback;
  }
  if (run == nullptr) return cudaSuccess;
  const FakeLaunch record = {found->second.c_str(),
                             {grid.x, grid.y, grid.z},
                             {block.x, block.y, block.z},
                             {cluster.x, cluster.y, cluster.z},
                             static_cast<uint32_t>(shared_bytes),
                             arguments,
                             stream};
  if (run(&record) != 0) last_error = cudaErrorLaunchFailure;
  return last_error;
}

// What the driver's documentation says of the arguments, for the types and modes in use here.
bool acceptable(CUtensorMapDataType type, cuuint32_t rank, uint64_t address, const cuuint64_t* dims,
                const cuuint64_t* strides, const cuuint32_t* box, CUtensorMapSwizzle swizzle) {
  const bool packed_fp4 = type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B;
  const uint64_t alignment = packed_fp4 ? 32 : 16;
  if (rank < 1 || rank > 5 || address % alignment != 0) return false;
  if (packed_fp4 && (dims[0] % 128 != 0 || box[0] != 128)) return false;
  if (packed_fp4 && swizzle != CU_TENSOR_MAP_SWIZZLE_NONE &&
      swizzle != CU_TENSOR_MAP_SWIZZLE_128B && swizzle != CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B) {
    return false;
  }
  for (cuuint32_t i = 0; i < rank; ++i) {
    if (dims[i] < 1 || dims[i] > uint64_t{1} << 32 || box[i] < 1 || box[i] > 256) return false;
    if (i + 1 < rank && (strides[i] % alignment != 0 || strides[i] >= uint64_t{1} << 40)) {
      return false;
    }
  }
  return true;
}

CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                      const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                      const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                      CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2_promotion,
                      CUtensorMapFloatOOBfill fill) {
  const auto at = reinterpret_cast<uint64_t>(address);
  if (!acceptable(type, rank, at, dims, strides, box, swizzle)) {
    const std::lock_guard<std::mutex> lock(mutex);
    ++refused_tensor_maps;
    return CUDA_ERROR_INVALID_VALUE;
  }
  FakeTensorMap fake = {};
  fake.magic = kFakeTensorMapMagic;
  fake.type = static_cast<uint8_t>(type);
  fake.rank = static_cast<uint8_t>(rank);
  fake.interleave = static_cast<uint8_t>(interleave);
  fake.swizzle = static_cast<uint8_t>(swizzle);
  fake.l2_promotion = static_cast<uint8_t>(l2_promotion);
  fake.fill = static_cast<uint8_t>(fill);
  fake.address = at;
  for (cuuint32_t i = 0; i < rank; ++i) {
    fake.dims[i] = static_cast<uint32_t>(dims[i]);
    fake.box[i] = static_cast<uint16_t>(box[i]);
    fake.element_strides[i] = static_cast<uint8_t>(element_strides[i]);
    if (i + 1 < rank) fake.strides[i] = strides[i];
  }
  std::memset(map, 0, sizeof(*map));
  std::memcpy(map, &fake, sizeof(fake));
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

void fake_cudart_set_callback(FakeLaunchCallback run) {
  const std::lock_guard<std::mutex> lock(mutex);
  callback = run;
}

void fake_cudart_set_device(int ordinal, int major, int minor, int sm_count) {
  const std::lock_guard<std::mutex> lock(mutex);
  devices[ordinal] = {major, minor, sm_count};
}

void fake_cudart_reset() {
  const std::lock_guard<std::mutex> lock(mutex);
  launched.clear();
  refused_tensor_maps = 0;
}

int fake_cudart_launches() { return static_cast<int>(launched.size()); }
const char* fake_cudart_launched_kernel(int index) { return launched.at(index).c_str(); }
int fake_cudart_refused_tensor_maps() { return refused_tensor_maps; }

// What nvcc's host code calls by itself.

void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

void __cudaRegisterFunction(void**, const char* host, char*, const char* device, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  kernel_names()[host] = device;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     cudaStream_t stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  const Configuration top = configurations.back();
  configurations.pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
  return launch(kernel, grid, block, dim3(1, 1, 1), shared_bytes, stream, arguments);
}

// The runtime's own functions.

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t stream) {
  return launch(function, grid, block, dim3(1, 1, 1), shared_bytes, stream, arguments);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  dim3 cluster(1, 1, 1);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) {
      const auto& dim = attribute.val.clusterDim;
      cluster = dim3(dim.x, dim.y, dim.z);
    }
  }
  return launch(function, config->gridDim, config->blockDim, cluster, config->dynamicSmemBytes,
                config->stream, arguments);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = devices.find(ordinal);
  if (found == devices.end()) return cudaErrorInvalidDevice;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = found->second.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = found->second.minor;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = found->second.sm_count;
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t cudaGetDevice(int* ordinal) {
  *ordinal = 0;
  return cudaSuccess;
}

// Above 13010, CUTLASS leaves the driver's own descriptor as it is.
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13090;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInvalidDevice ? "invalid device ordinal" : "stand-in error";
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const bool known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(encode_tiled) : nullptr;
  *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return known ? cudaSuccess : cudaErrorUnknown;
}
}
