// PTX text as instructions: PTX ISA 9.0, chapters 4 and 5.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace ptx {

// Anything that is wrong with a program or its run; the message names the PTX line.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Register {
  int slot;
  std::string type;  // "pred", "b32", ...
};

struct Scope {
  const Scope* parent;
  std::map<std::string, Register> registers;
  std::map<std::string, int> labels;  // index of the instruction that follows

  const Register* find_register(const std::string& name) const;
  int find_label(const std::string& name) const;  // -1: none
};

struct Instruction {
  int line;
  std::string text;
  std::string guard;  // register, or nothing
  bool guard_negated = false;
  std::vector<std::string> opcode;    // split at dots
  std::vector<std::string> operands;  // split at commas outside of brackets
  const Scope* scope;
  int target = -1;  // of a branch

  bool has(const std::string& modifier) const;
};

struct Variable {
  uint32_t alignment = 1;
  uint64_t bytes = 0;
  std::vector<uint8_t> data;  // its initial value, if it has one
  bool dynamic = false;       // .extern .shared name[]
};

struct Parameter {
  uint32_t offset;
  uint32_t bytes;
};

struct Kernel {
  std::string name;
  std::vector<std::string> parameter_names;
  std::map<std::string, Parameter> parameters;
  uint32_t parameter_bytes = 0;
  std::vector<Instruction> code;
  std::vector<std::unique_ptr<Scope>> scopes;
  std::map<std::string, Variable> shared;
  int slots = 0;
};

struct Module {
  std::map<std::string, Variable> shared;
  std::map<std::string, Variable> global;
  std::map<std::string, Kernel> kernels;
};

Module parse(const std::string& text);

std::vector<std::string> split_operands(const std::string& text);
int type_bytes(const std::string& type);

// What a thread asks of itself, PTX ISA chapter 10: registers that are set when it starts.
const std::vector<std::string>& special_registers();

}  // namespace ptx
