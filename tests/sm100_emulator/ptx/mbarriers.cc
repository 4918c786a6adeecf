// mbarrier, PTX ISA section 9.7.13.15.

#include "decode.h"

namespace ptx {
namespace {

Mbarrier& barrier_at(Warp& warp, uint32_t address) {
  return warp.cta->cluster->cta(address).mbarrier(address & kOffsetMask);
}

// 9.7.13.15.9 and .10.
Execute init(Decoder& d) {
  const Address address = d.address(0);
  const Source count = d.source(1);
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    ++machine.events;
    each(lanes, [&](int i) {
      const uint32_t at = address.shared(warp, i);
      if (at % 8 != 0) throw Error("misaligned mbarrier");
      const auto expected = static_cast<uint32_t>(count.lanes(warp)[i]);
      Cta& cta = warp.cta->cluster->cta(at);
      std::memset(cta.shared.at(at & kOffsetMask, 8).defined, 1, 8);
      cta.mbarriers[at & kOffsetMask] = {expected, expected, 0, false};
    });
    return Outcome::kNext;
  };
}

Execute inval(Decoder& d) {
  const Address address = d.address(0);
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    each(lanes, [&](int i) {
      const uint32_t at = address.shared(warp, i);
      barrier_at(warp, at);
      warp.cta->cluster->cta(at).mbarriers.erase(at & kOffsetMask);
    });
    return Outcome::kNext;
  };
}

// 9.7.13.15.13 arrive, with .expect_tx (.11) before it. The state that it returns is not kept.
Execute arrive(Decoder& d) {
  if (d.text(0) != "_") d.unknown();
  const bool expect = d.has("expect_tx"), counted = !expect && d.count() > 2;
  const Address address = d.address(1);
  const Source operand = expect || counted ? d.source(2) : Source{};
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    ++machine.events;
    each(lanes, [&](int i) {
      Mbarrier& barrier = barrier_at(warp, address.shared(warp, i));
      const uint32_t value = expect || counted ? static_cast<uint32_t>(operand.lanes(warp)[i]) : 1;
      if (expect) barrier.expect(value);
      barrier.arrive(counted ? value : 1);
    });
    return Outcome::kNext;
  };
}

Execute expect_tx(Decoder& d) {
  const Address address = d.address(0);
  const Source bytes = d.source(1);
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    ++machine.events;
    each(lanes, [&](int i) {
      barrier_at(warp, address.shared(warp, i)).expect(static_cast<uint32_t>(bytes.lanes(warp)[i]));
    });
    return Outcome::kNext;
  };
}

// 9.7.13.15.16: whether the phase of that parity has ended.
Execute wait(Decoder& d) {
  if (!d.has("parity")) d.unknown();
  const int to = d.destination(0);
  const Address address = d.address(1);
  const Source parity = d.source(2);
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    bool all = true;
    each(lanes, [&](int i) {
      const Mbarrier& barrier = barrier_at(warp, address.shared(warp, i));
      const bool ended = barrier.phase != ((parity.lanes(warp)[i] & 1) != 0);
      warp.registers[to][i] = ended;
      all = all && ended;
    });
    return all ? Outcome::kNext : Outcome::kYield;
  };
}

Execute mbarrier(Decoder& d) {
  const std::string& what = d.part(1);
  if (what == "init") return init(d);
  if (what == "inval") return inval(d);
  if (what == "arrive") return arrive(d);
  if (what == "expect_tx") return expect_tx(d);
  if (what == "try_wait" || what == "test_wait") return wait(d);
  d.unknown();
}

}  // namespace

void add_mbarriers(Table& table) { table["mbarrier"] = mbarrier; }

}  // namespace ptx
