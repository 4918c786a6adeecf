#include <algorithm>

#include "machine.h"

namespace ptx {
namespace {

constexpr int kPassesWithoutEvent = 8;  // of all warps: nothing but waiting is left

std::string at(const Instruction* instruction) {
  if (instruction == nullptr) return "";
  return "PTX line " + std::to_string(instruction->line) + " (" + instruction->text + "): ";
}

void set(Warp& warp, const Kernel& kernel, const std::string& name, uint32_t value) {
  const int slot = kernel.scopes.front()->find_register(name)->slot;
  warp.registers[slot].fill(value);
  warp.undefined[slot] = 0;
}

void set(Warp& warp, const Kernel& kernel, const std::string& name, Dim3 value) {
  set(warp, kernel, name + ".x", value.x);
  set(warp, kernel, name + ".y", value.y);
  set(warp, kernel, name + ".z", value.z);
}

}  // namespace

void Mbarrier::advance() {
  if (pending != 0 || transactions != 0) return;
  phase = !phase;
  pending = expected;
}

void Mbarrier::arrive(uint32_t count) {
  if (count > pending) throw Error("more arrivals at an mbarrier than it expects");
  pending -= count;
  advance();
}

void Mbarrier::complete(int64_t bytes) {
  transactions -= bytes;
  advance();
}

Mbarrier& Cta::mbarrier(uint32_t offset) {
  const auto found = mbarriers.find(offset);
  if (found == mbarriers.end()) {
    throw Error("no mbarrier was initialised at shared memory offset " + std::to_string(offset) +
                " of thread block " + std::to_string(rank));
  }
  return found->second;
}

Cta& Cluster::cta(uint32_t address) {
  const uint32_t rank = address >> kRankShift;
  if (rank >= ctas.size()) throw Error("shared memory of rank " + std::to_string(rank));
  return *ctas[rank];
}

bool Machine::cancel_pending(Dim3* first) {
  if (pending_.empty()) return false;
  *first = pending_.front();
  pending_.pop_front();
  return true;
}

void Machine::submit(uint64_t key, std::function<void()> work) {
  if (options.seed == 0) {
    work();
    ++events;
    return;
  }
  // Most things take a few passes, some of them very long.
  const uint64_t delay = random() % (random() % 4 == 0 ? 100 : 4);
  queues_[key == 0 ? unordered_++ : key].push_back({std::move(work), current, pass_ + delay});
}

void Machine::run_one_of(std::map<uint64_t, std::deque<Work>>::iterator queue) {
  Work work = std::move(queue->second.front());
  queue->second.pop_front();
  if (queue->second.empty()) queues_.erase(queue);
  ++events;
  current = work.instruction;
  work.run();
}

// Does what the engines have to do by now, or one thing of every queue.
bool Machine::run_engines(bool all) {
  bool any = false;
  std::vector<uint64_t> keys;
  for (const auto& [key, queue] : queues_) keys.push_back(key);
  std::shuffle(keys.begin(), keys.end(), random);
  for (uint64_t key : keys) {
    const auto queue = queues_.find(key);
    if (queue == queues_.end() || (!all && queue->second.front().ready > pass_)) continue;
    run_one_of(queue);
    any = true;
  }
  return any;
}

void Machine::start_cluster(Dim3 first, uint32_t shared_bytes) {
  auto cluster = std::make_unique<Cluster>();
  cluster->first = first;
  const Kernel& kernel = *program_->kernel;
  const uint32_t warps = (block.count() + kWarp - 1) / kWarp;
  for (uint32_t rank = 0; rank < cluster_shape.count(); ++rank) {
    auto cta = std::make_unique<Cta>(shared_bytes);
    cta->cluster = cluster.get();
    cta->rank = rank;
    const Dim3 within = {rank % cluster_shape.x, rank / cluster_shape.x % cluster_shape.y,
                         rank / cluster_shape.x / cluster_shape.y};
    cta->index = {first.x + within.x, first.y + within.y, first.z + within.z};
    for (uint32_t w = 0; w < warps; ++w) {
      auto warp = std::make_unique<Warp>();
      warp->cta = cta.get();
      warp->index = static_cast<int>(w);
      warp->registers.resize(program_->slots);
      warp->undefined.assign(program_->slots, ~0ull);
      warp->alive = 0;
      set(*warp, kernel, "%warpid", w);
      set(*warp, kernel, "%cluster_ctarank", rank);
      set(*warp, kernel, "%cluster_nctarank", cluster_shape.count());
      set(*warp, kernel, "%smid", rank);
      set(*warp, kernel, "%nsmid", 148);
      set(*warp, kernel, "%ntid", block);
      set(*warp, kernel, "%ctaid", cta->index);
      set(*warp, kernel, "%nctaid", grid);
      set(*warp, kernel, "%cluster_nctaid", cluster_shape);
      set(*warp, kernel, "%cluster_ctaid", within);
      set(*warp, kernel, "%clusterid",
          {first.x / cluster_shape.x, first.y / cluster_shape.y, first.z / cluster_shape.z});
      set(*warp, kernel, "%nclusterid",
          {grid.x / cluster_shape.x, grid.y / cluster_shape.y, grid.z / cluster_shape.z});
      for (const char* name : {"%laneid", "%tid.x", "%tid.y", "%tid.z"}) {
        const int slot = kernel.scopes.front()->find_register(name)->slot;
        warp->undefined[slot] = 0;
        for (uint32_t lane = 0; lane < kWarp; ++lane) {
          const uint32_t thread = w * kWarp + lane;
          if (thread < block.count()) warp->alive |= 1u << lane;
          const std::string axis = name;
          warp->registers[slot][lane] = axis == "%laneid"  ? lane
                                        : axis == "%tid.x" ? thread % block.x
                                        : axis == "%tid.y" ? thread / block.x % block.y
                                                           : thread / block.x / block.y;
        }
      }
      for (const auto& [name, slot] : program_->shared_slots) {
        warp->registers[slot].fill(rank << kRankShift | program_->shared_offsets.at(name));
        warp->undefined[slot] = 0;
      }
      warp->groups = {{0, warp->alive, false}};
      cta->warps.push_back(std::move(warp));
    }
    cluster->ctas.push_back(std::move(cta));
  }
  ++counts["clusters"];
  live_.push_back(std::move(cluster));
}

void Machine::finish_cluster(const Cluster& cluster) {
  for (const auto& cta : cluster.ctas) {
    for (int column = 0; column < kTmemColumns; ++column) {
      if (cta->tensor.owner[column] != 0) {
        throw Error("tensor memory column " + std::to_string(column) +
                    " is still allocated when its kernel ends");
      }
    }
    for (const auto& [offset, barrier] : cta->mbarriers) {
      if (barrier.transactions != 0) {
        throw Error("the mbarrier at " + std::to_string(offset) + " ends with " +
                    std::to_string(barrier.transactions) + " bytes outstanding");
      }
    }
  }
}

// The lanes to run next: the rearmost that need not wait for others of the warp.
Warp::Group* Machine::choose_group(Warp& warp) {
  auto& groups = warp.groups;
  if (groups.size() > 1) {
    std::sort(groups.begin(), groups.end(),
              [](const auto& a, const auto& b) { return a.pc < b.pc; });
    for (size_t i = 0; i + 1 < groups.size();) {
      if (groups[i].pc == groups[i + 1].pc) {
        groups[i].lanes |= groups[i + 1].lanes;
        groups[i].waiting &= groups[i + 1].waiting;
        groups.erase(groups.begin() + i + 1);
      } else {
        ++i;
      }
    }
  }
  if (groups.size() == 1) return &groups[0];
  Warp::Group* chosen = nullptr;
  for (Warp::Group& group : groups) {
    if (program_->steps[group.pc].is_collective) continue;
    if (chosen == nullptr || (chosen->waiting && !group.waiting)) chosen = &group;
  }
  if (chosen == nullptr) {
    current = program_->steps[groups[0].pc].instruction;
    throw Error("lanes of a warp wait for each other at different instructions, the others at " +
                at(program_->steps[groups[1].pc].instruction));
  }
  return chosen;
}

// Runs until the warp waits for something or ends.
void Machine::run_warp(Warp& warp) {
  while (!warp.done()) {
    Warp::Group* chosen = choose_group(warp);
    const Warp::Group group = *chosen;
    warp.groups.erase(warp.groups.begin() + (chosen - warp.groups.data()));
    if (!step(warp, group)) return;
  }
}

// Executes one instruction; false: let others run.
bool Machine::step(Warp& warp, Warp::Group group) {
  const Step& step = program_->steps[group.pc];
  current = step.instruction;
  if (++instructions_ > options.most_instructions) throw Error("too many instructions");
  uint32_t lanes = group.lanes;
  if (step.guard >= 0) {
    if (warp.undefined[step.guard] & both_halves(lanes)) throw Error("the guard is undefined");
    const Lanes& guard = warp.registers[step.guard];
    for (int lane = 0; lane < kWarp; ++lane) {
      if ((guard[lane] != 0) == step.guard_negated) lanes &= ~(1u << lane);
    }
  }
  if (step.is_branch) {
    const uint32_t others = group.lanes & ~lanes;
    if (lanes != 0) warp.groups.push_back({step.instruction->target, lanes, false});
    if (others != 0) warp.groups.push_back({group.pc + 1, others, false});
    ++warp.instructions;
    return true;
  }
  Outcome outcome = Outcome::kNext;
  if (lanes != 0) outcome = step.execute(*this, warp, lanes);
  if (outcome == Outcome::kBlock) {
    warp.groups.push_back({group.pc, group.lanes, true});
    return false;
  }
  ++warp.instructions;
  if (outcome == Outcome::kExit) {
    warp.alive &= ~lanes;
    ++events;
    group.lanes &= ~lanes;
    if (group.lanes == 0) return true;
  }
  warp.groups.push_back({group.pc + 1, group.lanes, outcome == Outcome::kYield});
  return outcome != Outcome::kYield;
}

std::string Machine::where(const Warp& warp) const {
  std::string result =
      "thread block " + std::to_string(warp.cta->rank) + " warp " + std::to_string(warp.index);
  for (const Warp::Group& group : warp.groups) {
    result += " at " + at(program_->steps[group.pc].instruction);
  }
  return result;
}

void Machine::launch(Program& program, Dim3 grid_, Dim3 block_, Dim3 cluster,
                     uint32_t dynamic_shared, void** arguments) {
  grid = grid_, block = block_, cluster_shape = cluster;
  program_ = &program;
  random.seed(options.seed);
  instructions_ = 0;
  queues_.clear(), live_.clear(), pending_.clear(), released_tensor_maps.clear();
  const uint32_t shared_bytes = program.dynamic_shared_start + dynamic_shared;
  if (shared_bytes > kSharedBytes) {
    throw Error("more shared memory than there is: " + std::to_string(dynamic_shared));
  }
  for (size_t i = 0; i < program.kernel->parameter_names.size(); ++i) {
    const Parameter& p = program.kernel->parameters.at(program.kernel->parameter_names[i]);
    std::memcpy(&program.parameters[p.offset], arguments[i], p.bytes);
  }
  for (uint32_t z = 0; z < grid.z; z += cluster.z) {
    for (uint32_t y = 0; y < grid.y; y += cluster.y) {
      for (uint32_t x = 0; x < grid.x; x += cluster.x) pending_.push_back({x, y, z});
    }
  }
  int idle = 0;
  try {
    while (!pending_.empty() || !live_.empty()) {
      const uint64_t before = events;
      ++pass_;
      while (!pending_.empty() && live_.size() < options.resident) {
        const Dim3 first = pending_.front();
        pending_.pop_front();
        start_cluster(first, shared_bytes);
        ++events;
      }
      std::vector<Warp*> warps;
      for (const auto& live : live_) {
        for (const auto& cta : live->ctas) {
          for (const auto& warp : cta->warps) {
            if (!warp->done()) warps.push_back(warp.get());
          }
        }
      }
      if (options.seed != 0) std::shuffle(warps.begin(), warps.end(), random);
      for (Warp* warp : warps) {
        if (options.seed != 0 && random() % 3 == 0) continue;
        run_warp(*warp);
      }
      run_engines(idle > kPassesWithoutEvent / 2 || warps.empty());
      current = nullptr;
      if (queues_.empty()) {
        const auto done = [](const std::unique_ptr<Cluster>& live) {
          for (const auto& cta : live->ctas) {
            for (const auto& warp : cta->warps) {
              if (!warp->done()) return false;
            }
          }
          return true;
        };
        for (auto live = live_.begin(); live != live_.end();) {
          if (!done(*live)) {
            ++live;
            continue;
          }
          finish_cluster(**live);
          live = live_.erase(live);
          ++events;
        }
      }
      idle = events == before ? idle + 1 : 0;
      if (idle > kPassesWithoutEvent * (options.seed != 0 ? 4 : 1)) {
        std::string message = "deadlock: ";
        for (Warp* warp : warps) {
          if (!warp->done()) message += where(*warp) + "; ";
        }
        throw Error(message);
      }
    }
  } catch (const Error& error) {
    live_.clear(), queues_.clear(), pending_.clear();
    const std::string text = error.what();
    throw Error(text.rfind("PTX line", 0) == 0 ? text : at(current) + text);
  }
}

}  // namespace ptx
