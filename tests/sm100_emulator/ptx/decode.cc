#include "decode.h"

#include <algorithm>
#include <cctype>

namespace ptx {
namespace {

std::shared_ptr<const Lanes> constant(uint64_t value) {
  auto lanes = std::make_shared<Lanes>();
  lanes->fill(value);
  return lanes;
}

// PTX ISA section 4.5: integers, and floats as the hexadecimal digits of their bits.
bool parse_constant(const std::string& text, uint64_t* value) {
  if (text.rfind("0f", 0) == 0 || text.rfind("0d", 0) == 0 || text.rfind("0F", 0) == 0) {
    *value = std::stoull(text.substr(2), nullptr, 16);
    return true;
  }
  const size_t digit = text[0] == '-' ? 1 : 0;
  if (digit >= text.size() || !std::isdigit(static_cast<unsigned char>(text[digit]))) return false;
  *value = digit == 1 ? static_cast<uint64_t>(-std::stoll(text.substr(1), nullptr, 0))
                      : std::stoull(text, nullptr, 0);
  return true;
}

// Instructions of a whole warp (.aligned, or .sync with a mask of all lanes).
bool is_collective(const Instruction& i) {
  const std::string& base = i.opcode[0];
  if (base == "mbarrier" || base == "fence") return false;
  if (i.has("aligned")) return true;
  if (base == "bar" || base == "barrier") return true;
  return i.has("sync") && (base == "shfl" || base == "vote" || base == "elect" || base == "redux" ||
                           base == "activemask" || base == "match");
}

const Table& table() {
  static const Table all = [] {
    Table result;
    for (auto add : {add_arithmetic, add_conversions, add_transfers, add_collectives, add_mbarriers,
                     add_bulk_copies, add_tensor_maps, add_tcgen05, add_launch_control, add_sm90}) {
      add(result);
    }
    return result;
  }();
  return all;
}

// Lays out a list of shared variables; returns where they end.
uint32_t place(const std::map<std::string, Variable>& variables, bool dynamic, uint32_t at,
               Program* program) {
  for (const auto& [name, variable] : variables) {
    if (variable.dynamic != dynamic) continue;
    const uint32_t alignment = dynamic ? 1024 : std::max(variable.alignment, 16u);
    const uint32_t start = (at + alignment - 1) / alignment * alignment;
    program->shared_offsets[name] = start;
    program->shared_slots[name] = program->slots++;
    at = start + static_cast<uint32_t>(variable.bytes);
  }
  return at;
}

}  // namespace

uint64_t uniform(const Lanes& values, uint32_t lanes) {
  const uint64_t first = values[__builtin_ctz(lanes)];
  each(lanes, [&](int lane) {
    if (values[lane] != first) throw Error("lanes disagree on an operand that they must share");
  });
  return first;
}

const std::string& Decoder::part(size_t i) const {
  static const std::string none;
  return i < instruction.opcode.size() ? instruction.opcode[i] : none;
}

const std::string& Decoder::text(size_t operand) const {
  if (operand >= instruction.operands.size()) throw Error("too few operands");
  return instruction.operands[operand];
}

Source Decoder::data(const std::string& text) {
  if (text[0] == '!') throw Error("negated operand " + text);
  if (const Register* r = instruction.scope->find_register(text)) {
    data_.push_back(r->slot);
    return {r->slot, nullptr};
  }
  const auto shared = program.shared_slots.find(text);
  if (shared != program.shared_slots.end()) return {shared->second, nullptr};
  const auto global = globals_.find(text);
  if (global != globals_.end()) return {-1, constant(global->second)};
  const auto& parameters = program.kernel->parameters;
  if (const auto p = parameters.find(text); p != parameters.end()) {
    const auto start = reinterpret_cast<uint64_t>(program.parameters);
    return {-1, constant(start + p->second.offset)};
  }
  uint64_t value;
  if (parse_constant(text, &value)) return {-1, constant(value)};
  throw Error("unknown operand " + text);
}

Source Decoder::source(const std::string& text) {
  const Source result = data(text);
  if (result.slot >= 0 && !data_.empty() && data_.back() == result.slot) {
    data_.pop_back();
    must_be_defined_.push_back(result.slot);
  }
  return result;
}

int Decoder::destination(const std::string& text) {
  if (text == "_") return -1;
  const Register* r = instruction.scope->find_register(text);
  if (r == nullptr) throw Error("unknown register " + text);
  destinations_.push_back(r->slot);
  return r->slot;
}

Address Decoder::address(const std::string& text) {
  std::string inner = text;
  if (text.front() == '[') inner = text.substr(1, text.size() - 2);
  inner.erase(std::remove(inner.begin(), inner.end(), ' '), inner.end());
  const size_t plus = inner.find('+');
  Address result;
  result.base = source(inner.substr(0, plus));
  if (plus != std::string::npos) result.offset = std::stoll(inner.substr(plus + 1), nullptr, 0);
  return result;
}

std::vector<std::string> Decoder::vector(size_t operand) const {
  const std::string& all = text(operand);
  if (all.front() != '{') return {all};
  return split_operands(all.substr(1, all.size() - 2));
}

std::string Decoder::register_type(const std::string& name) const {
  const Register* r = instruction.scope->find_register(name);
  return r == nullptr ? "" : r->type;
}

Execute Decoder::checked(Execute execute) const {
  return [execute = std::move(execute), must = must_be_defined_, data = data_,
          destinations = destinations_, packs = packs_, upper = upper_,
          lower = lower_](Machine& machine, Warp& warp, uint32_t lanes) {
    for (int slot : must) {
      if (warp.undefined[slot] & both_halves(lanes)) {
        throw Error("an operand was computed from memory or registers that nobody wrote");
      }
    }
    uint64_t undefined = 0;
    if (packs) {
      undefined = uint64_t{upper.undefined(warp)} << 32 | lower.undefined(warp);
    } else {
      for (int slot : data) undefined |= warp.undefined[slot];
      undefined = both_halves(static_cast<uint32_t>(undefined | undefined >> 32));
    }
    const uint64_t mask = both_halves(lanes);
    for (int slot : destinations) {
      warp.undefined[slot] = (warp.undefined[slot] & ~mask) | (undefined & mask);
    }
    return execute(machine, warp, lanes);
  };
}

void Decoder::unknown() const { throw Error("unknown instruction"); }

std::unique_ptr<Program> compile(const Module& module, const Kernel& kernel,
                                 const std::map<std::string, uint64_t>& globals) {
  auto program = std::make_unique<Program>();
  program->kernel = &kernel;
  program->slots = kernel.slots;
  program->parameter_memory.resize(kernel.parameter_bytes + 256);
  const auto memory = reinterpret_cast<uint64_t>(program->parameter_memory.data());
  program->parameters = reinterpret_cast<uint8_t*>((memory + 127) / 128 * 128);
  uint32_t end = place(module.shared, false, kSharedStart, program.get());
  end = place(kernel.shared, false, end, program.get());
  program->dynamic_shared_start =
      place(kernel.shared, true, place(module.shared, true, end, program.get()), program.get());
  for (const Instruction& instruction : kernel.code) {
    try {
      Step step;
      step.instruction = &instruction;
      step.is_branch = instruction.opcode[0] == "bra";
      step.is_collective = is_collective(instruction);
      if (!instruction.guard.empty()) {
        const Register* guard = instruction.scope->find_register(instruction.guard);
        if (guard == nullptr) throw Error("unknown register " + instruction.guard);
        step.guard = guard->slot;
        step.guard_negated = instruction.guard_negated;
      }
      if (!step.is_branch) {
        const auto build = table().find(instruction.opcode[0]);
        if (build == table().end()) throw Error("unknown instruction");
        Decoder decoder(*program, instruction, globals);
        step.execute = decoder.checked(build->second(decoder));
      }
      program->steps.push_back(std::move(step));
    } catch (const std::exception& error) {
      throw Error("PTX line " + std::to_string(instruction.line) + " (" + instruction.text +
                  "): " + error.what());
    }
  }
  return program;
}

}  // namespace ptx
