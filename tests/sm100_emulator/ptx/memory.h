// State spaces, PTX ISA section 5.1. Every byte knows whether it was ever written: what is computed
// of a byte that was not is undefined, and an error once it decides anything or leaves the kernel.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "module.h"

namespace ptx {

// What `bytes` at `data` hold and which of them are defined (1) or not (0).
struct View {
  uint8_t* data;
  uint8_t* defined;

  bool all_defined(uint64_t bytes) const { return std::memchr(defined, 0, bytes) == nullptr; }
};

// Shared memory of a thread block. A byte written by ordinary stores is "unfenced" for the async
// proxy until its writer executes fence.proxy.async: writers are kept as warp number + 1.
class SharedMemory {
 public:
  explicit SharedMemory(uint32_t bytes) : data_(bytes, 0xA5), defined_(bytes), unfenced_(bytes) {}

  View at(uint32_t offset, uint64_t bytes);
  // After an ordinary store.
  void mark_written(uint32_t offset, uint32_t bytes, int warp);
  // fence.proxy.async of a warp.
  void fence(int warp);
  // Before the async proxy reads.
  void check_fenced(uint32_t offset, uint32_t bytes) const;
  void mark_async(uint32_t offset, uint32_t bytes);

 private:
  std::vector<uint8_t> data_, defined_, unfenced_;
  std::vector<std::pair<uint32_t, uint32_t>> written_[33];  // not yet fenced, by warp + 1
};

// The arrays that a launch may touch.
class GlobalMemory {
 public:
  void add(uint64_t address, uint64_t bytes, bool defined, bool writable);
  void clear() { buffers_.clear(); }
  View at(uint64_t address, uint64_t bytes, bool writing);

 private:
  struct Buffer {
    uint64_t address, bytes;
    bool writable;
    std::vector<uint8_t> defined;
  };
  std::vector<Buffer> buffers_;
};

// Tensor memory of an SM, PTX ISA section 9.7.16.1: 128 lanes of 512 columns of 32 bits.
constexpr int kTmemLanes = 128, kTmemColumns = 512;
struct TensorMemory {
  std::vector<uint32_t> cells = std::vector<uint32_t>(kTmemLanes * kTmemColumns, 0x7FC0DEAD);
  std::vector<uint8_t> defined = std::vector<uint8_t>(kTmemLanes * kTmemColumns);
  int owner[kTmemColumns] = {};  // columns of the allocation that holds each, 0: free

  int index(int lane, int column) const { return lane * kTmemColumns + column; }
  void check(int lane, int column, int lanes, int columns) const;
};

}  // namespace ptx
