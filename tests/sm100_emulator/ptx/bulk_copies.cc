// cp.async.bulk and cp.async.bulk.tensor, PTX ISA sections 9.7.9.25 and 9.7.9.27.

#include "tensor_map.h"

namespace ptx {
namespace {

// Bytes on the way: what was read, to be written when the engine gets to it.
struct Parcel {
  std::vector<TensorMap::Piece> pieces;
  std::vector<uint8_t> data, defined;
};

// Where a load signals: the barrier at `address`, seen from the thread block `rank` that the data
// go to. With .cta_group::2 the address says which thread block of the pair holds it.
uint32_t barrier_rank(uint32_t address, uint32_t rank, bool pair, bool multicast) {
  const uint32_t named = address >> kRankShift;
  if (pair) return (rank & ~1u) | (named & 1u);
  if (multicast) return rank;
  if (named != rank) throw Error("the mbarrier is not in the thread block that the data go to");
  return named;
}

void deliver(Cta& cta, const TensorMap& map, const Parcel& parcel) {
  size_t at = 0;
  for (const TensorMap::Piece& piece : parcel.pieces) {
    const View view = cta.shared.at(piece.shared, map.slot_bytes());
    std::memset(view.defined, 1, map.slot_bytes());
    std::memcpy(view.data, &parcel.data[at], piece.bytes);
    std::memcpy(view.defined, &parcel.defined[at], piece.bytes);
    // What lies between packed numbers has no meaning.
    std::memset(view.data + piece.bytes, 0xA5, map.slot_bytes() - piece.bytes);
    cta.shared.mark_async(piece.shared, map.slot_bytes());
    at += piece.bytes;
  }
}

// Reads a box of a tensor; outside of the tensor there are zeros.
Parcel read_box(Machine& machine, const TensorMap& map, const std::vector<int32_t>& at,
                uint32_t shared) {
  Parcel parcel;
  parcel.pieces = map.box_at(at, shared & kOffsetMask);
  for (const TensorMap::Piece& piece : parcel.pieces) {
    const size_t begin = parcel.data.size();
    parcel.data.resize(begin + piece.bytes);
    parcel.defined.resize(begin + piece.bytes, 1);
    if (!piece.inside) continue;
    const View view = machine.global.at(piece.global, piece.bytes, false);
    std::memcpy(&parcel.data[begin], view.data, piece.bytes);
    std::memcpy(&parcel.defined[begin], view.defined, piece.bytes);
  }
  return parcel;
}

struct TensorOperand {  // [map, {x, y, ..}]
  Address map;
  std::vector<Source> coordinates;

  TensorOperand(Decoder& d, const std::string& text) {
    const auto parts = split_operands(text.substr(1, text.size() - 2));
    map = d.address(parts.at(0));
    for (const std::string& c : split_operands(parts.at(1).substr(1, parts.at(1).size() - 2))) {
      coordinates.push_back(d.source(c));
    }
  }

  std::vector<int32_t> at(const Warp& warp, int lane) const {
    std::vector<int32_t> result;
    for (const Source& c : coordinates) result.push_back(static_cast<int32_t>(c.lanes(warp)[lane]));
    return result;
  }
};

// 9.7.9.27.1.2, from global to shared memory.
Execute load_tensor(Decoder& d) {
  if (!d.has("mbarrier::complete_tx::bytes") || d.has("im2col") || d.has("tile::gather4"))
    d.unknown();
  const bool multicast = d.has("multicast::cluster"), pair = d.has("cta_group::2");
  const Address to = d.address(0), barrier = d.address(2);
  const TensorOperand tensor(d, d.text(1));
  const Source mask = multicast ? d.source(3) : Source{};
  const Program& program = d.program;
  return [=, &program](Machine& machine, Warp& warp, uint32_t lanes) {
    each(lanes, [&](int lane) {
      const TensorMap map = read_tensor_map(machine, warp, program, tensor.map.of(warp, lane));
      const auto at = tensor.at(warp, lane);
      const uint32_t target = to.shared(warp, lane), signal = barrier.shared(warp, lane);
      Cluster& cluster = *warp.cta->cluster;
      std::vector<uint32_t> ranks = {target >> kRankShift};
      if (multicast) {
        ranks.clear();
        const uint64_t bits = mask.lanes(warp)[lane] & 0xFFFF;
        for (uint32_t r = 0; r < 16; ++r) {
          if (bits >> r & 1) ranks.push_back(r);
        }
      }
      for (uint32_t rank : ranks) {
        if (rank >= cluster.ctas.size()) throw Error("multicast past the end of the cluster");
        machine.submit(0, [=, &machine, &cluster] {
          deliver(*cluster.ctas[rank], map, read_box(machine, map, at, target));
          const uint32_t owner = barrier_rank(signal, rank, pair, multicast);
          cluster.ctas.at(owner)->mbarrier(signal & kOffsetMask).complete(map.transaction_bytes());
          ++machine.counts["tensor loads"];
        });
      }
    });
    return Outcome::kNext;
  };
}

// 9.7.9.27.1.2, from shared to global memory. Read and written at different times; bytes out of
// bounds are dropped.
Execute store_tensor(Decoder& d) {
  if (!d.has("bulk_group")) d.unknown();
  const TensorOperand tensor(d, d.text(0));
  const Address from = d.address(1);
  const Program& program = d.program;
  return [=, &program](Machine& machine, Warp& warp, uint32_t lanes) {
    each(lanes, [&](int lane) {
      const TensorMap map = read_tensor_map(machine, warp, program, tensor.map.of(warp, lane));
      const auto at = tensor.at(warp, lane);
      // Nor is this in the ISA's text: an H200 refuses it.
      for (int32_t coordinate : at) {
        if (coordinate < 0) throw Error("a store to a negative coordinate");
      }
      const uint32_t source = from.shared(warp, lane);
      Cta& cta = warp.cta->cluster->cta(source);
      auto operation = std::make_shared<Warp::BulkOperation>();
      warp.open_bulk_group.push_back(operation);
      machine.submit(0, [=, &machine, &cta] {
        Parcel parcel;
        parcel.pieces = map.box_at(at, source & kOffsetMask);
        for (const TensorMap::Piece& piece : parcel.pieces) {
          const View view = cta.shared.at(piece.shared, piece.bytes);
          if (piece.inside) cta.shared.check_fenced(piece.shared, piece.bytes);
          parcel.data.insert(parcel.data.end(), view.data, view.data + piece.bytes);
          parcel.defined.insert(parcel.defined.end(), view.defined, view.defined + piece.bytes);
        }
        operation->read = true;
        machine.submit(0, [=, &machine] {
          size_t offset = 0;
          for (const TensorMap::Piece& piece : parcel.pieces) {
            if (piece.inside) {
              const View view = machine.global.at(piece.global, piece.bytes, true);
              if (std::memchr(&parcel.defined[offset], 0, piece.bytes) != nullptr) {
                throw Error("stores what was computed from memory that nobody wrote");
              }
              std::memcpy(view.data, &parcel.data[offset], piece.bytes);
              std::memset(view.defined, 1, piece.bytes);
            }
            offset += piece.bytes;
          }
          operation->written = true;
          ++machine.counts["tensor stores"];
        });
      });
    });
    return Outcome::kNext;
  };
}

// 9.7.9.25.4.1 cp.async.bulk: whole bytes, from global to shared memory or back.
Execute copy_bytes(Decoder& d) {
  const bool load = d.has("mbarrier::complete_tx::bytes");
  if (!load && !d.has("bulk_group")) d.unknown();
  const Address to = d.address(0), from = d.address(1);
  const Source size = d.source(2);
  const Address barrier = load ? d.address(3) : to;
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    each(lanes, [&](int lane) {
      const auto bytes = static_cast<uint32_t>(size.lanes(warp)[lane]);
      const uint32_t shared = load ? to.shared(warp, lane) : from.shared(warp, lane);
      const uint64_t global = load ? from.of(warp, lane) : to.of(warp, lane);
      if (bytes % 16 != 0 || shared % 16 != 0 || global % 16 != 0) throw Error("misaligned copy");
      Cluster& cluster = *warp.cta->cluster;
      Cta& cta = cluster.cta(shared);
      if (load) {
        const uint32_t signal = barrier.shared(warp, lane);
        machine.submit(0, [=, &machine, &cluster, &cta] {
          const View source = machine.global.at(global, bytes, false);
          const View target = cta.shared.at(shared & kOffsetMask, bytes);
          std::memcpy(target.data, source.data, bytes);
          std::memcpy(target.defined, source.defined, bytes);
          cta.shared.mark_async(shared & kOffsetMask, bytes);
          cluster.cta(signal).mbarrier(signal & kOffsetMask).complete(bytes);
        });
        return;
      }
      auto operation = std::make_shared<Warp::BulkOperation>();
      warp.open_bulk_group.push_back(operation);
      machine.submit(0, [=, &machine, &cta] {
        const View source = cta.shared.at(shared & kOffsetMask, bytes);
        cta.shared.check_fenced(shared & kOffsetMask, bytes);
        if (!source.all_defined(bytes)) throw Error("stores memory that nobody wrote");
        const View target = machine.global.at(global, bytes, true);
        std::memcpy(target.data, source.data, bytes);
        std::memset(target.defined, 1, bytes);
        operation->read = operation->written = true;
      });
    });
    return Outcome::kNext;
  };
}

Execute commit_group(Decoder&) {
  return [](Machine& machine, Warp& warp, uint32_t) {
    ++machine.events;
    warp.bulk_groups.push_back(std::move(warp.open_bulk_group));
    warp.open_bulk_group.clear();
    return Outcome::kNext;
  };
}

// 9.7.9.25.3.2: at most so many of the latest groups are pending; .read asks for the source alone.
Execute wait_group(Decoder& d) {
  const auto most = std::stoul(d.text(0));
  const bool read = d.has("read");
  return [=](Machine&, Warp& warp, uint32_t) {
    for (size_t i = 0; i + most < warp.bulk_groups.size(); ++i) {
      for (const auto& operation : warp.bulk_groups[i]) {
        if (!(read ? operation->read : operation->written)) return Outcome::kBlock;
      }
    }
    return Outcome::kNext;
  };
}

Execute cp(Decoder& d) {
  if (d.part(1) != "async" || d.part(2) != "bulk") d.unknown();
  if (d.part(3) == "commit_group") return commit_group(d);
  if (d.part(3) == "wait_group") return wait_group(d);
  if (d.part(3) != "tensor") return copy_bytes(d);
  return d.has("bulk_group") ? store_tensor(d) : load_tensor(d);
}

}  // namespace

void add_bulk_copies(Table& table) { table["cp"] = cp; }

}  // namespace ptx
