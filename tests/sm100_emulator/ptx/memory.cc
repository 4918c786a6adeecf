#include "memory.h"

#include <string>

namespace ptx {
namespace {

std::string hex(uint64_t value) {
  char text[32];
  snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

View SharedMemory::at(uint32_t offset, uint64_t bytes) {
  if (offset + bytes > data_.size()) {
    throw Error("out of bounds: " + std::to_string(bytes) + " bytes of shared memory at " +
                hex(offset) + ", of " + std::to_string(data_.size()));
  }
  return {&data_[offset], &defined_[offset]};
}

void SharedMemory::mark_written(uint32_t offset, uint32_t bytes, int warp) {
  std::memset(&unfenced_[offset], warp + 1, bytes);
  written_[warp + 1].push_back({offset, bytes});
}

void SharedMemory::fence(int warp) {
  for (const auto& [offset, bytes] : written_[warp + 1]) {
    for (uint32_t i = offset; i < offset + bytes; ++i) {
      if (unfenced_[i] == warp + 1) unfenced_[i] = 0;
    }
  }
  written_[warp + 1].clear();
}

void SharedMemory::check_fenced(uint32_t offset, uint32_t bytes) const {
  for (uint32_t i = offset; i < offset + bytes; ++i) {
    if (unfenced_[i] == 0) continue;
    throw Error("the async proxy reads shared memory at " + hex(i) + " that warp " +
                std::to_string(unfenced_[i] - 1) + " wrote without fence.proxy.async");
  }
}

void SharedMemory::mark_async(uint32_t offset, uint32_t bytes) {
  std::memset(&unfenced_[offset], 0, bytes);
}

void GlobalMemory::add(uint64_t address, uint64_t bytes, bool defined, bool writable) {
  buffers_.push_back({address, bytes, writable, std::vector<uint8_t>(bytes, defined)});
}

View GlobalMemory::at(uint64_t address, uint64_t bytes, bool writing) {
  for (Buffer& buffer : buffers_) {
    if (address < buffer.address || address + bytes > buffer.address + buffer.bytes) continue;
    if (writing && !buffer.writable) throw Error("write to a constant array at " + hex(address));
    return {reinterpret_cast<uint8_t*>(address), &buffer.defined[address - buffer.address]};
  }
  throw Error("out of bounds: " + std::to_string(bytes) + " bytes of global memory at " +
              hex(address));
}

void TensorMemory::check(int lane, int column, int lanes, int columns) const {
  if (lane < 0 || column < 0 || lane + lanes > kTmemLanes || column + columns > kTmemColumns) {
    throw Error("out of bounds: tensor memory lane " + std::to_string(lane) + ", column " +
                std::to_string(column));
  }
  for (int i = column; i < column + columns; ++i) {
    if (owner[i] == 0)
      throw Error("tensor memory column " + std::to_string(i) + " is not allocated");
  }
}

}  // namespace ptx
