#include "tensor_map.h"

namespace ptx {
namespace {

// CUtensorMapDataType.
constexpr int kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
constexpr int kFp4Align16 = 14;
// 16 numbers of 4 bits lie in 8 bytes of global memory, and in 16 of shared memory: the lower 8.
constexpr int kFp4Chunk = 16, kFp4ChunkBytes = 8, kFp4SlotBytes = 16;
// 5.5.5: chunks of 2^chunk bytes are permuted by the address of their 128-byte line. By
// CUtensorMapSwizzle: none, 32, 64 and 128 bytes, and 128 bytes with chunks of 32.
constexpr struct {
  uint32_t mask, chunk, alignment;
} kSwizzles[] = {{0, 4, 128}, {1, 4, 256}, {3, 4, 512}, {7, 4, 1024}, {3, 5, 512}};

uint32_t swizzle(uint32_t offset, int mode) {
  return offset ^ (offset >> 7 & kSwizzles[mode].mask) << kSwizzles[mode].chunk;
}

// 9.7.9.26.1 tensormap.replace, on the stand-in's fields.
Execute replace(Decoder& d) {
  if (!d.has("tile") || !d.has("shared::cta")) d.unknown();
  const std::string field = d.part(3);
  const bool indexed = field == "global_dim" || field == "global_stride";
  if (!indexed && field != "global_address") d.unknown();
  const Address address = d.address(0);
  const Source ordinal = indexed ? d.source(1) : Source{};
  const Source value = d.source(indexed ? 2 : 1);
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    ++machine.events;
    each(lanes, [&](int lane) {
      const uint32_t at = address.shared(warp, lane);
      SharedMemory& shared = warp.cta->cluster->cta(at).shared;
      const View view = shared.at(at & kOffsetMask, 128);
      if (!view.all_defined(sizeof(FakeTensorMap))) throw Error("a tensor map that nobody wrote");
      FakeTensorMap map;
      std::memcpy(&map, view.data, sizeof(map));
      if (map.magic != kFakeTensorMapMagic) throw Error("not a tensor map");
      const uint64_t number = value.lanes(warp)[lane];
      const uint64_t i = indexed ? ordinal.lanes(warp)[lane] : 0;
      if (indexed && i + (field == "global_stride") >= map.rank) {
        // CUTLASS replaces all five dimensions whatever the rank is; those past it mean nothing.
        if (i >= 5) throw Error("dimension out of range");
      } else if (field == "global_address") {
        if (number % (map.type == kFp4Align16 ? 32 : 16) != 0) throw Error("misaligned tensor");
        map.address = number;
      } else if (field == "global_dim") {
        map.dims[i] = static_cast<uint32_t>(number);
      } else {
        if (number % (map.type == kFp4Align16 ? 32 : 16) != 0) throw Error("misaligned stride");
        map.strides[i] = number;
      }
      std::memcpy(view.data, &map, sizeof(map));
    });
    return Outcome::kNext;
  };
}

// 9.7.13.4.2 (tensormap.cp_fenceproxy): copies a map from shared to global memory and releases it.
Execute copy_and_release(Decoder& d) {
  const Address to = d.address(0), from = d.address(1);
  if (d.text(2) != "128") d.unknown();
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    ++machine.events;
    const int lane = __builtin_ctz(lanes);
    const uint32_t at = from.shared(warp, lane);
    const uint64_t global = to.of(warp, lane);
    const View source = warp.cta->cluster->cta(at).shared.at(at & kOffsetMask, 128);
    if (!source.all_defined(sizeof(FakeTensorMap))) throw Error("a tensor map that nobody wrote");
    const View target = machine.global.at(global, 128, true);
    std::memcpy(target.data, source.data, 128);
    std::memset(target.defined, 1, 128);
    ++machine.released_tensor_maps[global];
    return Outcome::kNext;
  };
}

Execute tensormap(Decoder& d) {
  if (d.part(1) == "replace") return replace(d);
  if (d.part(1) == "cp_fenceproxy") return copy_and_release(d);
  d.unknown();
}

}  // namespace

uint32_t TensorMap::slot_bytes() const {
  return fields.type == kFp4Align16 ? kFp4SlotBytes : static_cast<uint32_t>(kBytes[fields.type]);
}

uint32_t TensorMap::transaction_bytes() const {
  uint64_t count = 1;
  for (int i = 0; i < fields.rank; ++i) count *= fields.box[i];
  return static_cast<uint32_t>(fields.type == kFp4Align16 ? count / 2
                                                          : count * kBytes[fields.type]);
}

std::vector<TensorMap::Piece> TensorMap::box_at(const std::vector<int32_t>& coordinates,
                                                uint32_t shared) const {
  const bool fp4 = fields.type == kFp4Align16;
  if (!fp4 && fields.type >= std::size(kBytes)) throw Error("unknown type of tensor map");
  if (fields.swizzle >= std::size(kSwizzles) || fields.interleave != 0)
    throw Error("unknown layout of tensor map");
  if (coordinates.size() != fields.rank)
    throw Error("coordinates of another rank than the tensor's");
  if (shared % kSwizzles[fields.swizzle].alignment != 0) {
    throw Error("misaligned box in shared memory");
  }
  const int step = fp4 ? kFp4Chunk : 1;
  const uint32_t bytes = fp4 ? kFp4ChunkBytes : static_cast<uint32_t>(kBytes[fields.type]);
  if (fp4 && coordinates[0] % 128 != 0) throw Error("misaligned coordinate along packed FP4");
  // Not in the ISA's text: an H200 takes anything else for an illegal instruction.
  if (!fp4 && coordinates[0] * static_cast<int>(bytes) % 16 != 0) {
    throw Error("the innermost coordinate is not at a multiple of 16 bytes");
  }
  std::vector<Piece> pieces;
  uint32_t index[5] = {};
  uint32_t offset = shared;
  while (true) {
    bool outer_inside = true;
    uint64_t row = fields.address;
    for (int i = 1; i < fields.rank; ++i) {
      const int64_t at = int64_t{coordinates[i]} + index[i] * fields.element_strides[i];
      outer_inside = outer_inside && at >= 0 && at < int64_t{fields.dims[i]};
      row += static_cast<uint64_t>(at) * fields.strides[i - 1];
    }
    for (int x = 0; x < fields.box[0]; x += step) {
      const int64_t at = int64_t{coordinates[0]} + x;
      const bool inside = outer_inside && at >= 0 && at < int64_t{fields.dims[0]};
      const uint64_t global = row + static_cast<uint64_t>(at / step) * bytes;
      pieces.push_back({global, swizzle(offset, fields.swizzle), bytes, inside});
      offset += slot_bytes();
    }
    int dimension = 1;
    while (dimension < fields.rank && ++index[dimension] == fields.box[dimension]) {
      index[dimension++] = 0;
    }
    if (dimension >= fields.rank) return pieces;
  }
}

TensorMap read_tensor_map(Machine& machine, Warp& warp, const Program& program, uint64_t address) {
  if (address % 64 != 0) throw Error("misaligned tensor map");
  TensorMap map;
  if (program.has_parameter(address, 128)) {
    std::memcpy(&map.fields, reinterpret_cast<const void*>(address), sizeof(FakeTensorMap));
  } else {
    const View view = machine.global.at(address, 128, false);
    if (!view.all_defined(sizeof(FakeTensorMap))) throw Error("a tensor map that nobody wrote");
    std::memcpy(&map.fields, view.data, sizeof(FakeTensorMap));
    const auto released = machine.released_tensor_maps.find(address);
    if (released != machine.released_tensor_maps.end() &&
        warp.cta->acquired_tensor_maps[address] != released->second) {
      throw Error("a tensor map that was changed is used without fence.proxy.tensormap");
    }
  }
  if (map.fields.magic != kFakeTensorMapMagic) throw Error("not a tensor map");
  return map;
}

void add_tensor_maps(Table& table) { table["tensormap"] = tensormap; }

}  // namespace ptx
