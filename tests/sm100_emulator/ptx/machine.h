// Threads, thread blocks, clusters and the asynchronous engines, and the scheduler that runs them.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "memory.h"
#include "module.h"

namespace ptx {

constexpr int kWarp = 32;
constexpr uint32_t kAllLanes = 0xFFFFFFFF;
// Shared memory as the hardware has it: the first KiB is the system's.
constexpr uint32_t kSharedStart = 1024, kSharedBytes = 228 * 1024;
// shared::cluster addresses (PTX ISA 5.1.7): the rank of the thread block in the cluster on top.
constexpr int kRankShift = 24;
constexpr uint32_t kOffsetMask = (1u << kRankShift) - 1;

constexpr uint64_t both_halves(uint32_t lanes) { return lanes | uint64_t{lanes} << 32; }

using Lanes = std::array<uint64_t, kWarp>;
struct Dim3 {
  uint32_t x, y, z;
  uint32_t count() const { return x * y * z; }
};

// What executing an instruction leads to.
enum class Outcome {
  kNext,
  kYield,  // done, but waiting in a loop is likely: let others run
  kBlock,  // not done: execute it again later
  kExit,
};

struct Machine;
struct Cta;
struct Cluster;

struct Warp {
  Cta* cta;
  int index;
  std::vector<Lanes> registers;
  // Lanes, by register: of the lower 16 bits, and from bit 32 on of the rest.
  std::vector<uint64_t> undefined;
  uint32_t alive;

  // Lanes that are at the same instruction.
  struct Group {
    int pc;
    uint32_t lanes;
    bool waiting;
  };
  std::vector<Group> groups;

  // Bulk async-groups (PTX ISA 9.7.9.25.3): operations that are not done, by group.
  struct BulkOperation {
    bool read = false, written = false;
  };
  using BulkGroup = std::vector<std::shared_ptr<BulkOperation>>;
  std::deque<BulkGroup> bulk_groups;
  BulkGroup open_bulk_group;

  bool at_barrier = false;  // has arrived and waits
  uint64_t barrier_generation = 0;
  uint64_t cluster_generation = 0;
  uint64_t instructions = 0;

  bool done() const { return groups.empty(); }
};

// mbarrier object, PTX ISA 9.7.13.15.
struct Mbarrier {
  uint32_t expected, pending;
  int64_t transactions;
  bool phase;

  void arrive(uint32_t count);
  void expect(int64_t bytes) { transactions += bytes; }
  void complete(int64_t bytes);

 private:
  void advance();
};

struct NamedBarrier {
  uint32_t arrived = 0;
  uint64_t generation = 0;
};

struct Cta {
  Cluster* cluster;
  uint32_t rank;
  Dim3 index;
  SharedMemory shared;
  TensorMemory tensor;
  bool may_allocate = true;
  std::map<uint64_t, uint64_t> acquired_tensor_maps;  // address -> release that was acquired
  std::map<uint32_t, Mbarrier> mbarriers;
  std::map<uint32_t, NamedBarrier> barriers;
  std::vector<std::unique_ptr<Warp>> warps;

  explicit Cta(uint32_t shared_bytes) : shared(shared_bytes) {}
  Mbarrier& mbarrier(uint32_t offset);
};

struct Cluster {
  std::vector<std::unique_ptr<Cta>> ctas;
  uint32_t arrived = 0;
  uint64_t generation = 0;
  Dim3 first;  // thread block

  Cta& cta(uint32_t address);  // of a shared::cluster address
};

using Execute = std::function<Outcome(Machine&, Warp&, uint32_t lanes)>;

struct Step {
  Execute execute;
  int guard = -1;
  bool guard_negated = false;
  bool is_branch = false;
  bool is_collective = false;  // all live lanes of the warp execute it together
  const Instruction* instruction = nullptr;
};

struct Program {
  const Kernel* kernel;
  std::vector<Step> steps;
  std::vector<uint8_t> parameter_memory;
  uint8_t* parameters;  // in it, aligned to 128 bytes: at a fixed address
  std::map<std::string, int> shared_slots;
  int slots;
  std::map<std::string, uint32_t> shared_offsets;
  uint32_t dynamic_shared_start = 0;

  // Whether an address is one of the kernel's parameters, whose addresses are generic ones too.
  bool has_parameter(uint64_t address, uint64_t bytes) const {
    const auto start = reinterpret_cast<uint64_t>(parameters);
    return address >= start && address + bytes <= start + kernel->parameter_bytes;
  }
};

struct Options {
  uint64_t seed = 0;      // 0: everything asynchronous happens at once
  uint32_t resident = 1;  // clusters that run at the same time
  uint64_t most_instructions = 400'000'000;
};

struct Machine {
  GlobalMemory global;
  Options options;
  std::mt19937_64 random;
  const Instruction* current = nullptr;
  std::map<std::string, uint64_t> executed;           // by opcode
  std::map<std::string, uint64_t> counts;             // what the engines did
  std::map<uint64_t, uint64_t> released_tensor_maps;  // address -> how often
  uint64_t events = 0;                                // progress that is not waiting in a loop

  void launch(Program& program, Dim3 grid, Dim3 block, Dim3 cluster, uint32_t dynamic_shared,
              void** arguments);

  // Hands work to an engine. Work with the same key is done in order; key 0 has no order.
  void submit(uint64_t key, std::function<void()> work);

  // The next cluster that has not started, for clusterlaunchcontrol; false: there is none.
  bool cancel_pending(Dim3* first);

  // Of the launch in progress.
  Dim3 grid, block, cluster_shape;

 private:
  struct Work {
    std::function<void()> run;
    const Instruction* instruction;
    uint64_t ready;  // not before this pass of the scheduler
  };
  std::map<uint64_t, std::deque<Work>> queues_;
  uint64_t unordered_ = 1ull << 63;
  std::deque<Dim3> pending_;
  std::deque<std::unique_ptr<Cluster>> live_;
  Program* program_ = nullptr;
  uint64_t instructions_ = 0;
  uint64_t pass_ = 0;

  void start_cluster(Dim3 first, uint32_t shared_bytes);
  void finish_cluster(const Cluster& cluster);
  bool run_engines(bool all);
  void run_one_of(std::map<uint64_t, std::deque<Work>>::iterator queue);
  void run_warp(Warp& warp);
  Warp::Group* choose_group(Warp& warp);
  bool step(Warp& warp, Warp::Group group);
  std::string where(const Warp& warp) const;
};

// Turns a kernel into closures; `globals` are the addresses of the module's variables.
std::unique_ptr<Program> compile(const Module& module, const Kernel& kernel,
                                 const std::map<std::string, uint64_t>& globals);

}  // namespace ptx
