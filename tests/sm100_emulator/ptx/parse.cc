#include <algorithm>
#include <cctype>
#include <regex>

#include "module.h"

namespace ptx {
namespace {

std::string trim(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// Comments become blanks, so that lines keep their numbers.
std::string without_comments(std::string text) {
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] != '/' || (text[i + 1] != '/' && text[i + 1] != '*')) continue;
    const bool line = text[i + 1] == '/';
    const std::string close = line ? "\n" : "*/";
    size_t end = text.find(close, i + 2);
    end = end == std::string::npos ? text.size() : end + (line ? 0 : 2);
    for (; i < end; ++i) {
      if (text[i] != '\n') text[i] = ' ';
    }
  }
  return text;
}

// .align 16 .b8 name[N] = {..}: what follows the state space.
std::pair<std::string, Variable> parse_variable(const std::string& text) {
  static const std::regex pattern(
      R"((?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)\s*(\[(\d*)\])?\s*(?:=\s*\{?([^}]*)\}?)?)");
  std::smatch match;
  if (!std::regex_match(text, match, pattern)) throw Error("unknown variable: " + text);
  Variable variable;
  const int element = type_bytes(match[2]);
  if (match[1].matched) variable.alignment = std::stoul(match[1]);
  variable.dynamic = match[4].matched && match[5].length() == 0;
  const uint64_t count = match[5].length() > 0 ? std::stoull(match[5]) : 1;
  variable.bytes = variable.dynamic ? 0 : count * element;
  if (match[6].matched) {
    for (const std::string& value : split_operands(match[6])) {
      const uint64_t number = std::stoull(value, nullptr, 0);
      for (int i = 0; i < element; ++i) variable.data.push_back(number >> (8 * i));
    }
  }
  return {match[3], variable};
}

class BodyParser {
 public:
  BodyParser(Kernel& kernel, const std::string& text, size_t begin, size_t end, int line)
      : kernel_(kernel), text_(text), at_(begin), end_(end), line_(line) {}

  void parse() {
    Scope* root = open(nullptr);
    for (const std::string& name : special_registers()) declare(root, name, "b32");
    parse_scope(root);
    for (Instruction& instruction : kernel_.code) {
      if (instruction.opcode[0] != "bra") continue;
      instruction.target = instruction.scope->find_label(instruction.operands.at(0));
      if (instruction.target < 0) throw Error("no such label: " + instruction.text);
    }
  }

 private:
  Scope* open(const Scope* parent) {
    kernel_.scopes.push_back(std::make_unique<Scope>(Scope{parent, {}, {}}));
    return kernel_.scopes.back().get();
  }

  void declare(Scope* scope, const std::string& name, const std::string& type) {
    scope->registers[name] = {kernel_.slots, type};
    kernel_.slots += type == "b128" ? 2 : 1;
  }

  void parse_scope(Scope* scope) {
    std::string statement;
    int first_line = line_, braces = 0;
    for (; at_ < end_; ++at_) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (c == ':' && is_label(statement)) {
        scope->labels[trim(statement)] = static_cast<int>(kernel_.code.size());
        statement.clear();
        continue;
      }
      if (c == '{' && trim(statement).empty()) {
        ++at_;
        parse_scope(open(scope));
        continue;
      }
      if (c == '}' && braces == 0) return;
      braces += (c == '{') - (c == '}');
      if (c == ';') {
        parse_statement(scope, trim(statement), first_line);
        statement.clear();
        continue;
      }
      if (trim(statement).empty()) first_line = line_;
      statement += c == '\n' ? ' ' : c;
    }
  }

  bool is_label(const std::string& statement) const {
    if (text_[at_ + 1] == ':' || text_[at_ - 1] == ':') return false;
    const std::string name = trim(statement);
    return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
      return std::isalnum(c) || c == '_' || c == '$';
    });
  }

  void parse_statement(Scope* scope, const std::string& statement, int line) {
    if (statement.empty() || statement.rfind(".pragma", 0) == 0) return;
    if (statement.rfind(".reg", 0) == 0) return parse_registers(scope, statement);
    if (statement.rfind(".shared", 0) == 0) {
      kernel_.shared.insert(parse_variable(trim(statement.substr(7))));
      return;
    }
    Instruction instruction;
    instruction.line = line;
    instruction.text = statement.size() > 200 ? statement.substr(0, 200) + "..." : statement;
    instruction.scope = scope;
    std::string rest = statement;
    if (rest[0] == '@') {
      const size_t end = rest.find_first_of(" \t");
      instruction.guard_negated = rest[1] == '!';
      const size_t begin = instruction.guard_negated ? 2 : 1;
      instruction.guard = rest.substr(begin, end - begin);
      rest = trim(rest.substr(end));
    }
    const size_t end = std::min(rest.find_first_of(" \t{["), rest.size());
    std::string part;
    for (char c : rest.substr(0, end) + ".") {
      if (c != '.') {
        part += c;
        continue;
      }
      instruction.opcode.push_back(part);
      part.clear();
    }
    instruction.operands = split_operands(rest.substr(end));
    kernel_.code.push_back(instruction);
  }

  void parse_registers(Scope* scope, const std::string& statement) {
    static const std::regex pattern(R"(\.reg\s+\.(\w+)\s+(.*))");
    std::smatch match;
    if (!std::regex_match(statement, match, pattern)) throw Error("unknown: " + statement);
    for (const std::string& name : split_operands(match[2])) {
      const size_t open = name.find('<');
      if (open == std::string::npos) {
        declare(scope, name, match[1]);
        continue;
      }
      const int count = std::stoi(name.substr(open + 1));
      for (int i = 0; i < count; ++i)
        declare(scope, name.substr(0, open) + std::to_string(i), match[1]);
    }
  }

  Kernel& kernel_;
  const std::string& text_;
  size_t at_, end_;
  int line_;
};

void parse_parameters(Kernel& kernel, const std::string& text) {
  static const std::regex pattern(
      R"(\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s+(?:\.\w+\s+)*(?:\.align\s+\d+\s+)?)?)"
      R"(([\w$]+)(?:\[(\d+)\])?)");
  // A parameter at a time: regular expressions over a whole list of them recurse too deeply.
  for (const std::string& one : split_operands(text)) {
    std::smatch match;
    if (!std::regex_match(one, match, pattern)) throw Error("unknown parameter: " + one);
    const uint32_t element = type_bytes(match[2]);
    const uint32_t alignment = match[1].matched ? std::stoul(match[1]) : element;
    const uint32_t bytes = element * (match[4].matched ? std::stoul(match[4]) : 1);
    const uint32_t offset = (kernel.parameter_bytes + alignment - 1) / alignment * alignment;
    kernel.parameter_names.push_back(match[3]);
    kernel.parameters[match[3]] = {offset, bytes};
    kernel.parameter_bytes = offset + bytes;
  }
}

size_t closing(const std::string& text, size_t open) {
  const char close = text[open] == '{' ? '}' : ')';
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    depth += (text[i] == text[open]) - (text[i] == close);
    if (depth == 0) return i;
  }
  throw Error("PTX ends inside of brackets");
}

}  // namespace

const Register* Scope::find_register(const std::string& name) const {
  const auto found = registers.find(name);
  if (found != registers.end()) return &found->second;
  return parent == nullptr ? nullptr : parent->find_register(name);
}

int Scope::find_label(const std::string& name) const {
  const auto found = labels.find(name);
  if (found != labels.end()) return found->second;
  return parent == nullptr ? -1 : parent->find_label(name);
}

bool Instruction::has(const std::string& modifier) const {
  return std::find(opcode.begin(), opcode.end(), modifier) != opcode.end();
}

std::vector<std::string> split_operands(const std::string& text) {
  std::vector<std::string> result;
  std::string current;
  int depth = 0;
  for (char c : text + ",") {
    if (c == ',' && depth == 0) {
      if (!trim(current).empty()) result.push_back(trim(current));
      current.clear();
      continue;
    }
    depth += (c == '{' || c == '[' || c == '(') - (c == '}' || c == ']' || c == ')');
    current += c;
  }
  return result;
}

int type_bytes(const std::string& type) {
  if (type == "pred") return 1;
  if (type == "bf16" || type == "f16") return 2;
  if (type == "bf16x2" || type == "f16x2") return 4;
  const size_t digits = type.find_first_of("0123456789");
  if (digits == std::string::npos || digits != 1) throw Error("unknown type: " + type);
  return std::stoi(type.substr(digits)) / 8;
}

const std::vector<std::string>& special_registers() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = {"%laneid",           "%warpid", "%cluster_ctarank",
                                    "%cluster_nctarank", "%smid",   "%nsmid"};
    for (const char* base : {"tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid",
                             "cluster_ctaid", "cluster_nctaid"}) {
      for (const char* axis : {"x", "y", "z"}) all.push_back(std::string("%") + base + "." + axis);
    }
    return all;
  }();
  return names;
}

Module parse(const std::string& original) {
  const std::string text = without_comments(original);
  Module module;
  int line = 1;
  size_t at = 0;
  auto advance = [&](size_t to) {
    line += static_cast<int>(std::count(text.begin() + at, text.begin() + to, '\n'));
    at = to;
  };
  while (true) {
    const size_t next = text.find('.', at);
    if (next == std::string::npos) return module;
    advance(next);
    const size_t word_end = text.find_first_of(" \t\n", at);
    const std::string word = text.substr(at, word_end - at);
    if (word == ".entry") {
      Kernel kernel;
      const size_t open = text.find('(', at), close = closing(text, open);
      kernel.name = trim(text.substr(word_end, open - word_end));
      parse_parameters(kernel, text.substr(open + 1, close - open - 1));
      const size_t body = text.find('{', close), end = closing(text, body);
      advance(body + 1);
      BodyParser(kernel, text, body + 1, end, line).parse();
      advance(end);
      const std::string name = kernel.name;
      module.kernels.emplace(name, std::move(kernel));
    } else if (word == ".global" || word == ".const" || word == ".shared") {
      const size_t end = text.find(';', at);
      auto variable = parse_variable(trim(text.substr(word_end, end - word_end)));
      (word == ".shared" ? module.shared : module.global).insert(variable);
      advance(end);
    } else if (word == ".func") {
      throw Error("functions are not supported (line " + std::to_string(line) + ")");
    } else if (word == ".version" || word == ".target" || word == ".address_size") {
      advance(text.find('\n', at));  // their values may hold dots
    } else {
      advance(word_end);  // .visible, .extern, .maxntid, ...
    }
  }
}

}  // namespace ptx
