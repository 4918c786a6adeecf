// From an instruction's text to a closure. Each file of instructions adds its own to the table.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "machine.h"

namespace ptx {

// An operand that is read: a register or a constant.
struct Source {
  int slot = -1;
  std::shared_ptr<const Lanes> constant;

  const Lanes& lanes(const Warp& warp) const { return slot < 0 ? *constant : warp.registers[slot]; }
  uint32_t undefined(const Warp& warp) const {
    return static_cast<uint32_t>(undefined_halves(warp) | undefined_halves(warp) >> 32);
  }
  uint64_t undefined_halves(const Warp& warp) const { return slot < 0 ? 0 : warp.undefined[slot]; }
};

// [register + offset]
struct Address {
  Source base;
  int64_t offset = 0;

  uint64_t of(const Warp& warp, int lane) const { return base.lanes(warp)[lane] + offset; }
  // As a shared::cluster address.
  uint32_t shared(const Warp& warp, int lane) const {
    return static_cast<uint32_t>(of(warp, lane));
  }
};

class Decoder {
 public:
  Decoder(const Program& program, const Instruction& instruction,
          const std::map<std::string, uint64_t>& globals)
      : program(program), instruction(instruction), globals_(globals) {}

  const Program& program;
  const Instruction& instruction;

  bool has(const char* modifier) const { return instruction.has(modifier); }
  const std::string& part(size_t i) const;
  const std::string& type() const { return instruction.opcode.back(); }
  size_t count() const { return instruction.operands.size(); }

  Source source(size_t operand) { return source(text(operand)); }
  Source source(const std::string& text);
  // A source that may be undefined without harm: what is computed of it then is.
  Source data(size_t operand) { return data(text(operand)); }
  Source data(const std::string& text);
  int destination(size_t operand) { return destination(text(operand)); }  // -1: _
  int destination(const std::string& text);
  Address address(size_t operand) { return address(text(operand)); }
  Address address(const std::string& text);
  std::vector<std::string> vector(size_t operand) const;  // {a, b}, or one register alone
  std::string register_type(const std::string& name) const;
  const std::string& text(size_t operand) const;

  // The destination's halves are made of one source each.
  void packs(const Source& upper, const Source& lower) {
    upper_ = upper, lower_ = lower, packs_ = true;
  }

  // `execute`, after a check that no source is undefined; destinations become defined, or as
  // undefined as the data are.
  Execute checked(Execute execute) const;

  [[noreturn]] void unknown() const;

 private:
  const std::map<std::string, uint64_t>& globals_;
  std::vector<int> must_be_defined_, data_, destinations_;
  Source upper_, lower_;
  bool packs_ = false;
};

using Build = Execute (*)(Decoder&);
using Table = std::map<std::string, Build>;  // by the opcode's first part

void add_arithmetic(Table&);
void add_conversions(Table&);
void add_transfers(Table&);
void add_collectives(Table&);
void add_mbarriers(Table&);
void add_bulk_copies(Table&);
void add_tensor_maps(Table&);
void add_tcgen05(Table&);
void add_launch_control(Table&);
void add_sm90(Table&);

// Calls f(lane) for each of the lanes.
template <class F>
void each(uint32_t lanes, F f) {
  for (; lanes != 0; lanes &= lanes - 1) f(__builtin_ctz(lanes));
}

// The value that all lanes agree on.
uint64_t uniform(const Lanes& values, uint32_t lanes);

}  // namespace ptx
