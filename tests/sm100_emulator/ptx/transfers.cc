// Loads, stores and atomics (PTX ISA sections 9.7.9 and 9.7.13), addresses, and fences.

#include "decode.h"

namespace ptx {
namespace {

enum class Space { kParameter, kGlobal, kShared, kGeneric };

Space space_of(const Decoder& d) {
  const std::string& name = d.part(1);
  if (name == "param" || name.rfind("param::", 0) == 0) return Space::kParameter;
  if (name == "global") return Space::kGlobal;
  if (name.rfind("shared", 0) == 0) return Space::kShared;
  if (name == "const" || name == "local") d.unknown();
  return Space::kGeneric;
}

struct Access {
  Space space;
  Address address;
  int element, count;
  const Program* program;

  int bytes() const { return element * count; }

  // Where lane `lane` reads or writes. Parameters are always defined.
  View view(Machine& machine, Warp& warp, int lane, bool writing) const {
    static uint8_t ones[64];
    const uint64_t at = address.of(warp, lane);
    if (at % bytes() != 0) throw Error("misaligned address");
    if (space == Space::kShared) {
      return warp.cta->cluster->cta(static_cast<uint32_t>(at)).shared.at(at & kOffsetMask, bytes());
    }
    if (space != Space::kGlobal && program->has_parameter(at, bytes())) {
      if (writing) throw Error("write to a parameter");
      std::memset(ones, 1, sizeof(ones));
      return {reinterpret_cast<uint8_t*>(at), ones};
    }
    if (space == Space::kParameter) throw Error("out of bounds: address of no parameter");
    return machine.global.at(at, bytes(), writing);
  }
};

int vector_count(const Decoder& d) {
  for (const char* name : {"v2", "v4", "v8"}) {
    if (d.has(name)) return name[1] - '0';
  }
  return 1;
}

// 9.7.9.8 and 9.7.9.9. Bytes that nobody wrote make an undefined register.
Execute ld(Decoder& d) {
  Access access = {space_of(d), d.address(1), type_bytes(d.type()), vector_count(d), &d.program};
  const bool wide = d.type() == "b128", is_signed = d.type()[0] == 's';
  std::vector<int> to;
  for (const std::string& name : d.vector(0)) to.push_back(d.destination(name));
  if (static_cast<int>(to.size()) != access.count) d.unknown();
  std::vector<int> widths;  // a register may be wider than what is loaded: signs extend
  for (const std::string& name : d.vector(0))
    widths.push_back(name == "_" ? 8 : type_bytes(d.register_type(name)));
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    // Destinations may hold the address.
    Lanes values[8];
    uint32_t undefined[8] = {};
    each(lanes, [&](int lane) {
      const View view = access.view(machine, warp, lane, false);
      for (int i = 0; i < access.count; ++i) {
        for (int half = 0; half < (wide ? 2 : 1); ++half) {
          const int bytes = std::min(access.element, 8);
          uint64_t value = 0;
          std::memcpy(&value, view.data + i * access.element + 8 * half, bytes);
          if (is_signed)
            value = static_cast<uint64_t>(static_cast<int64_t>(value << (64 - 8 * bytes)) >>
                                          (64 - 8 * bytes));
          if (widths[i] < 8) value &= (1ull << 8 * widths[i]) - 1;
          values[wide ? half : i][lane] = value;
        }
        if (!View{view.data, view.defined + i * access.element}.all_defined(access.element)) {
          undefined[i] |= 1u << lane;
        }
      }
    });
    for (int i = 0; i < access.count; ++i) {
      if (to[i] < 0) continue;
      for (int half = 0; half < (wide ? 2 : 1); ++half) {
        each(lanes,
             [&](int lane) { warp.registers[to[i] + half][lane] = values[wide ? half : i][lane]; });
        warp.undefined[to[i] + half] =
            (warp.undefined[to[i] + half] & ~both_halves(lanes)) | both_halves(undefined[i]);
      }
    }
    return Outcome::kNext;
  };
}

// 9.7.9.11. What is undefined may be stored in shared memory, but must not leave the kernel.
Execute st(Decoder& d) {
  Access access = {space_of(d), d.address(0), type_bytes(d.type()), vector_count(d), &d.program};
  if (access.element > 8) d.unknown();
  std::vector<Source> from;
  for (const std::string& name : d.vector(1)) {
    from.push_back(access.space == Space::kShared ? d.data(name) : d.source(name));
  }
  if (static_cast<int>(from.size()) != access.count) d.unknown();
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    ++machine.events;
    each(lanes, [&](int lane) {
      const View view = access.view(machine, warp, lane, true);
      for (int i = 0; i < access.count; ++i) {
        const uint64_t value = from[i].lanes(warp)[lane];
        std::memcpy(view.data + i * access.element, &value, access.element);
        for (int byte = 0; byte < access.element; ++byte) {
          const int bit = lane + (byte < 2 ? 0 : 32);
          view.defined[i * access.element + byte] = !(from[i].undefined_halves(warp) >> bit & 1);
        }
      }
      if (access.space == Space::kShared) {
        const uint32_t at = access.address.shared(warp, lane);
        warp.cta->cluster->cta(at).shared.mark_written(at & kOffsetMask, access.bytes(),
                                                       warp.index);
      }
    });
    return Outcome::kNext;
  };
}

// 9.7.13.5, on 32-bit integers.
Execute atom(Decoder& d) {
  const std::string& t = d.type();
  if (t != "u32" && t != "s32" && t != "b32") d.unknown();
  std::string operation;
  for (const char* name : {"add", "max", "min", "exch"}) {
    if (d.has(name)) operation = name;
  }
  if (operation.empty()) d.unknown();
  const int to = d.destination(0);
  const bool is_signed = t == "s32";
  Access access = {space_of(d), d.address(1), 4, 1, &d.program};
  const Source operand = d.source(2);
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    ++machine.events;
    each(lanes, [&](int lane) {
      const View view = access.view(machine, warp, lane, true);
      if (!view.all_defined(4)) throw Error("an atomic on memory that nobody wrote");
      uint32_t before, after;
      std::memcpy(&before, view.data, 4);
      const auto value = static_cast<uint32_t>(operand.lanes(warp)[lane]);
      const bool less =
          is_signed ? static_cast<int32_t>(before) < static_cast<int32_t>(value) : before < value;
      after = operation == "add"             ? before + value
              : operation == "exch"          ? value
              : (operation == "max") == less ? value
                                             : before;
      std::memcpy(view.data, &after, 4);
      if (to >= 0) warp.registers[to][lane] = before;
    });
    return Outcome::kNext;
  };
}

// 9.7.9.20: spaces other than shared keep their addresses here.
Execute cvta(Decoder& d) {
  if (d.has("shared") || d.has("shared::cta") || d.has("local")) {
    // The low 32 bits of a generic address of shared memory are its offset there.
    if (!d.has("to")) d.unknown();
  }
  const int to = d.destination(0);
  const Source a = d.data(1);
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    each(lanes, [&](int i) { warp.registers[to][i] = a.lanes(warp)[i]; });
    return Outcome::kNext;
  };
}

// 9.7.9.23: the same offset in another thread block of the cluster.
Execute mapa(Decoder& d) {
  if (!d.has("shared::cluster")) d.unknown();
  const int to = d.destination(0);
  const Source a = d.source(1), rank = d.source(2);
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    each(lanes, [&](int i) {
      warp.registers[to][i] = (a.lanes(warp)[i] & kOffsetMask) | rank.lanes(warp)[i] << kRankShift;
    });
    return Outcome::kNext;
  };
}

Execute nothing(Decoder&) {
  return [](Machine&, Warp&, uint32_t) { return Outcome::kNext; };
}

// Makes a tensor map that was released (tensor_maps.cc) safe to use by this thread block.
Execute acquire_tensor_map(Decoder& d) {
  if (!d.has("acquire")) return nothing(d);
  const Address address = d.address(0);
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    each(lanes, [&](int i) {
      const uint64_t at = address.of(warp, i);
      const auto released = machine.released_tensor_maps.find(at);
      if (released != machine.released_tensor_maps.end()) {
        warp.cta->acquired_tensor_maps[at] = released->second;
      }
    });
    return Outcome::kNext;
  };
}

// 9.7.13.4. Everything here is sequentially consistent, but the async proxy has a view of its own.
Execute fence(Decoder& d) {
  if (!d.has("proxy")) return nothing(d);
  if (d.part(2) == "tensormap::generic") return acquire_tensor_map(d);
  if (d.part(2) != "async" && d.part(2) != "async::generic") d.unknown();
  return [](Machine&, Warp& warp, uint32_t) {
    for (auto& cta : warp.cta->cluster->ctas) cta->shared.fence(warp.index);
    return Outcome::kNext;
  };
}

Execute leave(Decoder&) {
  return [](Machine&, Warp&, uint32_t) { return Outcome::kExit; };
}

Execute trap(Decoder&) {
  return [](Machine&, Warp&, uint32_t) -> Outcome { throw Error("the kernel traps"); };
}

}  // namespace

void add_transfers(Table& table) {
  table["ld"] = ld, table["st"] = st, table["atom"] = atom, table["cvta"] = cvta;
  table["mapa"] = mapa, table["fence"] = fence, table["ret"] = leave, table["exit"] = leave;
  table["trap"] = trap, table["brkpt"] = trap;
  // Hints, and waiting for what is never made to wait here: 9.7.9.15, 9.7.13.13, 9.7.19.
  for (const char* name : {"prefetch", "membar", "griddepcontrol", "setmaxnreg", "nanosleep"}) {
    table[name] = nothing;
  }
}

}  // namespace ptx
