// Cluster launch control, PTX ISA section 9.7.13.17: a running cluster takes over one that has not
// started. The answer is opaque to programs; here it is x, y, z and whether there was one.

#include "decode.h"

namespace ptx {
namespace {

Execute try_cancel(Decoder& d) {
  if (!d.has("async") || !d.has("b128")) d.unknown();
  const bool multicast = d.has("multicast::cluster::all");
  const Address to = d.address(0), barrier = d.address(1);
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    each(lanes, [&](int lane) {
      const uint32_t target = to.shared(warp, lane), signal = barrier.shared(warp, lane);
      Cluster& cluster = *warp.cta->cluster;
      machine.submit(0, [=, &machine, &cluster] {
        Dim3 first = {};
        const bool found = machine.cancel_pending(&first);
        const uint32_t answer[4] = {first.x, first.y, first.z, found};
        for (auto& cta : cluster.ctas) {
          if (!multicast && cta->rank != target >> kRankShift) continue;
          const View view = cta->shared.at(target & kOffsetMask, 16);
          std::memcpy(view.data, answer, 16);
          std::memset(view.defined, 1, 16);
          cta->mbarrier(signal & kOffsetMask).complete(16);
        }
        ++machine.counts[found ? "clusters taken over" : "clusters not found"];
      });
    });
    return Outcome::kNext;
  };
}

Execute query(Decoder& d) {
  if (d.has("is_canceled")) {
    const int to = d.destination(0);
    const Source answer = d.source(1);
    return [=](Machine&, Warp& warp, uint32_t lanes) {
      const Lanes& upper = warp.registers[answer.slot + 1];
      each(lanes, [&](int i) { warp.registers[to][i] = upper[i] >> 32; });
      return Outcome::kNext;
    };
  }
  if (!d.has("get_first_ctaid") || !d.has("v4")) d.unknown();
  std::vector<int> to;
  for (const std::string& name : d.vector(0)) to.push_back(d.destination(name));
  const Source answer = d.source(1);
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    each(lanes, [&](int i) {
      const uint64_t lower = warp.registers[answer.slot][i],
                     upper = warp.registers[answer.slot + 1][i];
      if (upper >> 32 == 0) throw Error("asks for the first thread block of no cluster");
      const uint64_t values[4] = {lower & 0xFFFFFFFF, lower >> 32, upper & 0xFFFFFFFF, 0};
      for (int axis = 0; axis < 4; ++axis) {
        if (to[axis] >= 0) warp.registers[to[axis]][i] = values[axis];
      }
    });
    return Outcome::kNext;
  };
}

Execute control(Decoder& d) {
  if (d.part(1) == "try_cancel") return try_cancel(d);
  if (d.part(1) == "query_cancel") return query(d);
  d.unknown();
}

}  // namespace

void add_launch_control(Table& table) { table["clusterlaunchcontrol"] = control; }

}  // namespace ptx
