// The emulator's C interface; emulator.py is its other side.

#include <algorithm>
#include <memory>

#include "block_mma.h"
#include "machine.h"
#include "tests/sm100/fake_cudart/fake_cudart.h"

namespace {

struct LoadedModule {
  ptx::Module module;
  std::map<std::string, std::vector<uint8_t>> variables;

  explicit LoadedModule(const char* text) : module(ptx::parse(text)) {}
};

struct Emulator {
  std::vector<std::unique_ptr<LoadedModule>> modules;
  std::map<std::string, std::unique_ptr<ptx::Program>> programs;
  ptx::Machine machine;
};

thread_local std::string message;

template <class F>
int guarded(F f) {
  try {
    f();
    return 0;
  } catch (const std::exception& error) {
    message = error.what();
    return 1;
  }
}

ptx::Dim3 dim3(const uint32_t (&values)[3]) { return {values[0], values[1], values[2]}; }

}  // namespace

extern "C" {

const char* emulator_error() { return message.c_str(); }

Emulator* emulator_create() { return new Emulator; }

// Its kernels take the place of those with the same names.
int emulator_add_module(Emulator* emulator, const char* text) {
  return guarded([&] {
    auto loaded = std::make_unique<LoadedModule>(text);
    std::map<std::string, uint64_t> addresses;
    for (const auto& [name, variable] : loaded->module.global) {
      auto& memory = loaded->variables[name];
      memory = variable.data;
      memory.resize(std::max<size_t>(variable.bytes, 16));
      addresses[name] = reinterpret_cast<uint64_t>(memory.data());
    }
    for (const auto& [name, kernel] : loaded->module.kernels) {
      emulator->programs[name] = ptx::compile(loaded->module, kernel, addresses);
    }
    emulator->modules.push_back(std::move(loaded));
  });
}

void emulator_destroy(Emulator* emulator) { delete emulator; }

void emulator_set_options(Emulator* emulator, uint64_t seed, uint32_t resident) {
  emulator->machine.options.seed = seed;
  emulator->machine.options.resident = resident;
}

void emulator_clear_arrays(Emulator* emulator) {
  emulator->machine.global.clear();
  for (const auto& loaded : emulator->modules) {
    for (auto& [name, memory] : loaded->variables) {
      emulator->machine.global.add(reinterpret_cast<uint64_t>(memory.data()), memory.size(), true,
                                   true);
    }
  }
}

void emulator_add_array(Emulator* emulator, void* data, uint64_t bytes, int defined, int writable) {
  emulator->machine.global.add(reinterpret_cast<uint64_t>(data), bytes, defined != 0,
                               writable != 0);
}

// Which bytes of an array were written.
int emulator_defined(Emulator* emulator, void* data, uint64_t bytes, uint8_t* defined) {
  return guarded([&] {
    const ptx::View view =
        emulator->machine.global.at(reinterpret_cast<uint64_t>(data), bytes, false);
    std::memcpy(defined, view.defined, bytes);
  });
}

int emulator_launch(Emulator* emulator, const FakeLaunch* launch) {
  return guarded([&] {
    const auto program = emulator->programs.find(launch->kernel);
    if (program == emulator->programs.end()) throw ptx::Error("no such kernel");
    emulator->machine.launch(*program->second, dim3(launch->grid), dim3(launch->block),
                             dim3(launch->cluster), launch->shared_bytes, launch->arguments);
  });
}

uint64_t emulator_count(Emulator* emulator, const char* name) {
  return emulator->machine.counts[name];
}

// A row of 32 codes by another, for tests of the arithmetic alone.
uint32_t emulator_block_mma(const uint8_t* a, int a_format, uint8_t a_scale, const uint8_t* b,
                            int b_format, uint8_t b_scale, uint32_t accumulator) {
  const auto fa = static_cast<ptx::Format>(a_format), fb = static_cast<ptx::Format>(b_format);
  return ptx::multiply_accumulate(ptx::expand(a, fa, a_scale), fa, ptx::expand(b, fb, b_scale), fb,
                                  accumulator);
}
}
