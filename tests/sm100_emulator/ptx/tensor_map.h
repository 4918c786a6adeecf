// Tiles of tensors, PTX ISA section 5.5: which bytes of global memory a box has, and where in
// shared memory they lie.
#pragma once

#include <vector>

#include "decode.h"
#include "tests/sm100/fake_cudart/fake_cudart.h"

namespace ptx {

struct TensorMap {
  FakeTensorMap fields;

  // A run of bytes that is contiguous on both sides.
  struct Piece {
    uint64_t global;  // address
    uint32_t shared;  // offset, swizzled
    uint32_t bytes;
    bool inside;  // of the tensor
  };
  std::vector<Piece> box_at(const std::vector<int32_t>& coordinates, uint32_t shared) const;

  // Of the box as it lies in global memory: what an mbarrier counts.
  uint32_t transaction_bytes() const;
  // Bytes that a piece takes in shared memory: FP4 is unpacked to twice as many.
  uint32_t slot_bytes() const;
};

// The map at an address in the kernel's parameters or in global memory; checks that what was
// written there by the kernel was acquired (9.7.13.4).
TensorMap read_tensor_map(Machine& machine, Warp& warp, const Program& program, uint64_t address);

}  // namespace ptx
