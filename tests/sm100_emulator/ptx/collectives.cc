// What the lanes of a warp, and the warps of a thread block or a cluster, do together.

#include "decode.h"

namespace ptx {
namespace {

void check_whole(const Warp& warp, uint32_t lanes) {
  if (lanes != warp.alive) throw Error("not all lanes of the warp are here");
}

// 9.7.9.6 shfl.sync: c holds the last lane of a segment, and the bits that a lane keeps of itself.
Execute shfl(Decoder& d) {
  const std::string& text = d.text(0);
  const size_t bar = text.find('|');
  const int to = d.destination(text.substr(0, bar));
  const int valid = bar == std::string::npos ? -1 : d.destination(text.substr(bar + 1));
  const std::string mode = d.part(2);
  const Source a = d.data(1), b = d.source(2), c = d.source(3), members = d.source(4);
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    const auto mask = static_cast<uint32_t>(uniform(members.lanes(warp), lanes));
    if ((mask & warp.alive & ~lanes) != 0 || (lanes & ~mask) != 0) {
      throw Error("lanes other than the members execute it");
    }
    const Lanes values = a.lanes(warp), amounts = b.lanes(warp), clamps = c.lanes(warp);
    const uint32_t undefined = a.undefined(warp);
    uint32_t result_undefined = 0;
    each(lanes, [&](int lane) {
      const int segment = clamps[lane] >> 8 & 31, amount = amounts[lane] & 31;
      const int last = clamps[lane] & 31, first = lane & segment;
      const int most = first | (last & ~segment);
      int from;
      bool inside;
      if (mode == "up")
        from = lane - amount, inside = from >= most;
      else if (mode == "down")
        from = lane + amount, inside = from <= most;
      else if (mode == "bfly")
        from = lane ^ amount, inside = from <= most;
      else
        from = first | (amount & ~segment), inside = from <= most;
      if (!inside) from = lane;
      if (!(lanes >> from & 1)) throw Error("shfl reads a lane that does not take part");
      if (undefined >> from & 1) result_undefined |= 1u << lane;
      warp.registers[to][lane] = static_cast<uint32_t>(values[from]);
      if (valid >= 0) warp.registers[valid][lane] = inside;
    });
    warp.undefined[to] = (warp.undefined[to] & ~both_halves(lanes)) | both_halves(result_undefined);
    if (valid >= 0) warp.undefined[valid] &= ~both_halves(lanes);
    return Outcome::kNext;
  };
}

// 9.7.13.10 vote.sync.
Execute vote(Decoder& d) {
  const int to = d.destination(0);
  std::string name = d.text(1);
  const bool negated = name[0] == '!';
  const Source predicate = d.source(negated ? name.substr(1) : name);
  const std::string mode = d.part(2);
  if (mode != "ballot" && mode != "any" && mode != "all") d.unknown();
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    check_whole(warp, lanes);
    uint32_t ballot = 0;
    each(lanes, [&](int i) {
      if ((predicate.lanes(warp)[i] != 0) != negated) ballot |= 1u << i;
    });
    const uint64_t result = mode == "ballot" ? ballot
                            : mode == "any"  ? ballot != 0
                                             : ballot == lanes;
    each(lanes, [&](int i) { warp.registers[to][i] = result; });
    return Outcome::kNext;
  };
}

// 9.7.13.12 redux.sync.
Execute redux(Decoder& d) {
  const bool maximum = d.has("max");
  if ((!maximum && !d.has("min") && !d.has("add")) || d.type() != "u32") d.unknown();
  const bool add = d.has("add");
  const int to = d.destination(0);
  const Source a = d.source(1);
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    check_whole(warp, lanes);
    const Lanes values = a.lanes(warp);
    auto result = static_cast<uint32_t>(add ? 0 : values[__builtin_ctz(lanes)]);
    each(lanes, [&](int i) {
      const auto value = static_cast<uint32_t>(values[i]);
      result = add ? result + value : maximum ? std::max(result, value) : std::min(result, value);
    });
    each(lanes, [&](int i) { warp.registers[to][i] = result; });
    return Outcome::kNext;
  };
}

// 9.7.13.14 elect.sync: any lane will do; the lowest is what the hardware picks.
Execute elect(Decoder& d) {
  const std::string& text = d.text(0);
  const size_t bar = text.find('|');
  const int leader = d.destination(text.substr(0, bar));
  const int elected = d.destination(text.substr(bar + 1));
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    check_whole(warp, lanes);
    const int first = __builtin_ctz(lanes);
    each(lanes, [&](int i) {
      if (leader >= 0) warp.registers[leader][i] = first;
      warp.registers[elected][i] = i == first;
    });
    return Outcome::kNext;
  };
}

// 9.7.13.1 bar and barrier: a warp arrives for all its threads.
Execute bar(Decoder& d) {
  const bool cta_barrier = d.part(1) == "sync" || d.part(1) == "arrive" || d.part(2) == "sync";
  if (!cta_barrier) d.unknown();
  const bool arrive = d.has("arrive");
  const Source id = d.source(0);
  const bool counted = d.count() > 1;
  const Source threads = counted ? d.source(1) : id;
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    check_whole(warp, lanes);
    const auto which = static_cast<uint32_t>(uniform(id.lanes(warp), lanes));
    if (which >= 16) throw Error("there are 16 barriers");
    NamedBarrier& barrier = warp.cta->barriers[which];
    if (warp.at_barrier) {
      if (barrier.generation == warp.barrier_generation) return Outcome::kBlock;
      warp.at_barrier = false;
      return Outcome::kNext;
    }
    const auto expected =
        static_cast<uint32_t>(counted ? uniform(threads.lanes(warp), lanes)
                                      : (machine.block.count() + kWarp - 1) / kWarp * kWarp);
    ++machine.events;
    barrier.arrived += kWarp;
    if (barrier.arrived > expected) throw Error("more threads arrive than the barrier expects");
    warp.barrier_generation = barrier.generation;
    if (barrier.arrived == expected) {
      barrier.arrived = 0;
      ++barrier.generation;
      return Outcome::kNext;
    }
    if (arrive) return Outcome::kNext;
    warp.at_barrier = true;
    return Outcome::kBlock;
  };
}

// 9.7.13.3 barrier.cluster.
Execute cluster_barrier(Decoder& d) {
  if (d.has("arrive")) {
    return [](Machine& machine, Warp& warp, uint32_t lanes) {
      check_whole(warp, lanes);
      Cluster& cluster = *warp.cta->cluster;
      warp.cluster_generation = cluster.generation;
      ++machine.events;
      if (++cluster.arrived == cluster.ctas.size() * warp.cta->warps.size()) {
        cluster.arrived = 0;
        ++cluster.generation;
      }
      return Outcome::kNext;
    };
  }
  return [](Machine&, Warp& warp, uint32_t lanes) {
    check_whole(warp, lanes);
    const bool passed = warp.cta->cluster->generation != warp.cluster_generation;
    return passed ? Outcome::kNext : Outcome::kBlock;
  };
}

Execute barrier(Decoder& d) { return d.part(1) == "cluster" ? cluster_barrier(d) : bar(d); }

// bar.warp.sync, 9.7.13.2: lanes meet.
Execute bar_or_warp(Decoder& d) {
  if (d.part(1) != "warp") return bar(d);
  return [](Machine&, Warp& warp, uint32_t lanes) {
    check_whole(warp, lanes);
    return Outcome::kNext;
  };
}

// 9.7.14.5.16 stmatrix: lane 8 j + r gives the address of row r of matrix j; in it, lane t's two
// elements are at row t / 4, columns 2 (t % 4) and the next, or the transpose.
Execute stmatrix(Decoder& d) {
  if (!d.has("m8n8") || d.type() != "b16") d.unknown();
  const bool transposed = d.has("trans");
  const Address address = d.address(0);
  std::vector<Source> from;
  for (const std::string& name : d.vector(1)) from.push_back(d.data(name));
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    check_whole(warp, lanes);
    ++machine.events;
    for (size_t matrix = 0; matrix < from.size(); ++matrix) {
      for (int row = 0; row < 8; ++row) {
        const uint32_t at = address.shared(warp, static_cast<int>(8 * matrix) + row);
        if (at % 16 != 0) throw Error("misaligned row");
        SharedMemory& shared = warp.cta->cluster->cta(at).shared;
        const View view = shared.at(at & kOffsetMask, 16);
        for (int column = 0; column < 8; ++column) {
          const int r = transposed ? column : row, c = transposed ? row : column;
          const int lane = 4 * r + c / 2;
          const uint64_t value = from[matrix].lanes(warp)[lane] >> (16 * (c % 2));
          view.data[2 * column] = value & 255;
          view.data[2 * column + 1] = value >> 8 & 255;
          const bool bad = from[matrix].undefined_halves(warp) >> (lane + 32 * (c % 2)) & 1;
          std::memset(view.defined + 2 * column, !bad, 2);
        }
        shared.mark_written(at & kOffsetMask, 16, warp.index);
      }
    }
    return Outcome::kNext;
  };
}

}  // namespace

void add_collectives(Table& table) {
  table["shfl"] = shfl, table["vote"] = vote, table["redux"] = redux, table["elect"] = elect;
  table["bar"] = bar_or_warp, table["barrier"] = barrier, table["stmatrix"] = stmatrix;
}

}  // namespace ptx
