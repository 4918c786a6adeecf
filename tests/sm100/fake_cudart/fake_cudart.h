// A stand-in for the CUDA runtime and for XLA's side of the FFI: the SM100 backend's own objects
// are linked against it instead of against cudart, and its handlers run on a machine without a GPU
// up to the launches, which are recorded and may be handed to an interpreter.
#pragma once

#include <cstdint>

extern "C" {

struct FakeLaunch {
  const char* kernel;  // mangled name
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t cluster[3];
  uint32_t shared_bytes;
  void** arguments;  // one pointer for each kernel parameter
  void* stream;
};

// What the stand-in makes of a tensor map: the arguments of cuTensorMapEncodeTiled, in the first
// bytes of the 128 that the kernel gets.
struct FakeTensorMap {
  uint32_t magic;  // kFakeTensorMapMagic
  uint8_t type, rank, interleave, swizzle, l2_promotion, fill;
  uint8_t element_strides[5];
  uint16_t box[5];
  uint32_t dims[5];
  uint64_t address;
  uint64_t strides[4];  // bytes, from the second dimension on
};
inline constexpr uint32_t kFakeTensorMapMagic = 0x7E45A9B1;
static_assert(sizeof(FakeTensorMap) <= 128, "");

// Runs a launch; anything but 0 makes it fail.
typedef int (*FakeLaunchCallback)(const FakeLaunch* launch);

void fake_cudart_set_callback(FakeLaunchCallback callback);  // null: launches succeed, unexecuted
void fake_cudart_set_device(int ordinal, int major, int minor, int sm_count);

// What has happened since the last reset.
void fake_cudart_reset();
int fake_cudart_launches();
const char* fake_cudart_launched_kernel(int index);
int fake_cudart_refused_tensor_maps();

struct FakeBuffer {
  int32_t type;  // XLA_FFI_DataType
  int32_t rank;
  int64_t dims[4];
  void* data;
};

struct FakeAttribute {
  const char* name;
  const char* text;  // a string, or null for an int64
  int64_t number;
};

// Calls the handler of a target, as XLA would with stream 0 of a device. Null, or the error's code
// and message, valid until this thread's next call.
const char* fake_xla_call(const char* target, int device, const FakeBuffer* arguments,
                          int argument_count, const FakeBuffer* results, int result_count,
                          const FakeAttribute* attributes, int attribute_count);

// Whether the handler says that it may be captured in a command buffer.
bool fake_xla_command_buffer_compatible(const char* target);
}
