// The fifth generation's tensor core and its memory, PTX ISA section 9.7.16.

#include "block_mma.h"
#include "decode.h"
#include "matrix.h"

namespace ptx {
namespace {

// A tensor memory address, 9.7.16.1.2.
int column_of(uint32_t address) { return static_cast<int>(address & 0xFFFF); }
int lane_of(uint32_t address) { return static_cast<int>(address >> 16 & 0x3FFF); }

// The thread blocks that an instruction concerns: with .cta_group::2 both of the pair.
std::vector<Cta*> group_of(Warp& warp, bool pair) {
  if (!pair) return {warp.cta};
  auto& ctas = warp.cta->cluster->ctas;
  const uint32_t first = warp.cta->rank & ~1u;
  if (first + 1 >= ctas.size()) throw Error(".cta_group::2 in a cluster of one");
  return {ctas[first].get(), ctas[first + 1].get()};
}

// The tensor core works in order; its queue's key is the thread block's number, from 1 on.
uint64_t queue_of(const Machine& machine, const std::vector<Cta*>& group) {
  const Dim3 at = group[0]->index;
  return 1 + at.x + machine.grid.x * (at.y + uint64_t{machine.grid.y} * at.z);
}

bool is_pair(const Decoder& d) {
  if (!d.has("cta_group::2") && !d.has("cta_group::1")) d.unknown();
  return d.has("cta_group::2");
}

// 9.7.16.7.1: waits for columns to be free, and writes where they start.
Execute alloc(Decoder& d) {
  const Address to = d.address(0);
  const Source count = d.source(1);
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    const auto columns = static_cast<int>(uniform(count.lanes(warp), lanes));
    if (columns < 32 || columns > kTmemColumns || (columns & (columns - 1)) != 0) {
      throw Error("tensor memory comes in powers of two of 32 to 512 columns, not " +
                  std::to_string(columns));
    }
    Cta& cta = *warp.cta;
    if (!cta.may_allocate) throw Error("the permit to allocate was given up");
    int start = 0;
    while (start < kTmemColumns && std::any_of(
                                       cta.tensor.owner + start, cta.tensor.owner + start + columns,
                                       [](int owner) { return owner != 0; })) {
      start += columns;
    }
    if (start >= kTmemColumns) return Outcome::kBlock;
    std::fill_n(cta.tensor.owner + start, columns, start + 1);
    const uint32_t at = to.shared(warp, __builtin_ctz(lanes));
    const View view = cta.cluster->cta(at).shared.at(at & kOffsetMask, 4);
    std::memcpy(view.data, &start, 4);
    std::memset(view.defined, 1, 4);
    ++machine.events;
    return Outcome::kNext;
  };
}

Execute dealloc(Decoder& d) {
  const Source address = d.source(0), count = d.source(1);
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    const int start = column_of(static_cast<uint32_t>(uniform(address.lanes(warp), lanes)));
    const auto columns = static_cast<int>(uniform(count.lanes(warp), lanes));
    int* owner = warp.cta->tensor.owner;
    for (int i = start; i < start + columns; ++i) {
      if (i >= kTmemColumns || owner[i] != start + 1) {
        throw Error("frees tensor memory that was not allocated so");
      }
      owner[i] = 0;
    }
    ++machine.events;
    return Outcome::kNext;
  };
}

Execute relinquish(Decoder&) {
  return [](Machine&, Warp& warp, uint32_t) {
    warp.cta->may_allocate = false;
    return Outcome::kNext;
  };
}

// Where register r of lane t lies, relative to the address, 9.7.16.2.3.
struct Fragment {
  bool wide;  // .16x256b; else .32x32b
  int repeat;

  int registers() const { return wide ? 4 * repeat : repeat; }
  int rows() const { return wide ? 16 : 32; }
  int columns() const { return wide ? 8 * repeat : repeat; }
  int lane(int r, int t) const { return wide ? t / 4 + 8 * (r / 2 % 2) : t; }
  int column(int r, int t) const { return wide ? 8 * (r / 4) + 2 * (t % 4) + r % 2 : r; }
};

Fragment fragment_of(const Decoder& d, size_t registers) {
  Fragment result = {d.has("16x256b"), 0};
  if (!result.wide && !d.has("32x32b")) d.unknown();
  for (int i = 1; i <= 128; i *= 2) {
    if (d.has(("x" + std::to_string(i)).c_str())) result.repeat = i;
  }
  if (result.repeat == 0 || result.registers() != static_cast<int>(registers)) d.unknown();
  return result;
}

// The first cell; 9.7.16.8.1: warp w of a warpgroup reaches lanes 32 w to 32 w + 31.
int check_access(const Warp& warp, const Fragment& fragment, uint32_t address) {
  const int first = warp.index % 4 * 32, column = column_of(address);
  // An address may leave the warp's own part to the hardware.
  int lane = lane_of(address);
  if (lane < 32) lane += first;
  if (lane < first || lane + fragment.rows() > first + 32) {
    throw Error("tensor memory lane " + std::to_string(lane) + " from warp " +
                std::to_string(warp.index));
  }
  warp.cta->tensor.check(lane, column, fragment.rows(), fragment.columns());
  return warp.cta->tensor.index(lane, column);
}

// 9.7.16.8.2. The results are there at once: CUTLASS's epilogues rely on it between a load and its
// tcgen05.wait::ld, and the machine code has a scoreboard for them.
Execute ld(Decoder& d) {
  std::vector<int> to;
  for (const std::string& name : d.vector(0)) to.push_back(d.destination(name));
  const Fragment fragment = fragment_of(d, to.size());
  const Address address = d.address(1);
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    const auto at = static_cast<uint32_t>(address.of(warp, __builtin_ctz(lanes)));
    const int start = check_access(warp, fragment, at);
    for (int r = 0; r < fragment.registers(); ++r) {
      uint32_t undefined = 0;
      each(lanes, [&](int t) {
        const int cell = start + warp.cta->tensor.index(fragment.lane(r, t), fragment.column(r, t));
        warp.registers[to[r]][t] = warp.cta->tensor.cells[cell];
        if (!warp.cta->tensor.defined[cell]) undefined |= 1u << t;
      });
      warp.undefined[to[r]] = both_halves(undefined);
    }
    return Outcome::kNext;
  };
}

// 9.7.16.8.3.
Execute st(Decoder& d) {
  std::vector<Source> from;
  for (const std::string& name : d.vector(1)) from.push_back(d.data(name));
  const Fragment fragment = fragment_of(d, from.size());
  const Address address = d.address(0);
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    ++machine.events;
    const auto at = static_cast<uint32_t>(address.of(warp, __builtin_ctz(lanes)));
    const int start = check_access(warp, fragment, at);
    for (int r = 0; r < fragment.registers(); ++r) {
      each(lanes, [&](int t) {
        const int cell = start + warp.cta->tensor.index(fragment.lane(r, t), fragment.column(r, t));
        warp.cta->tensor.cells[cell] = static_cast<uint32_t>(from[r].lanes(warp)[t]);
        warp.cta->tensor.defined[cell] = !(from[r].undefined(warp) >> t & 1);
      });
    }
    return Outcome::kNext;
  };
}

// A shared memory descriptor, 9.7.16.5.1.
Matrix matrix_of(uint64_t bits) {
  if ((bits >> 46 & 7) != 1) throw Error("the matrix descriptor's version is not 1");
  if ((bits >> 49 & 7) != 0 || (bits >> 52 & 1) != 0) throw Error("unknown matrix descriptor");
  switch (bits >> 61) {
    case 0:
      return {bits, 0};
    case 2:
      return {bits, 3};
    case 4:
      return {bits, 2};
    case 6:
      return {bits, 1};
    default:
      throw Error("unknown swizzle of a matrix descriptor");
  }
}

// 9.7.16.9.3 tcgen05.cp .32x128b.warpx4: 32 rows of 16 bytes, to all four parts of 32 lanes.
Execute cp(Decoder& d) {
  const bool pair = is_pair(d);
  if (!d.has("32x128b") || !d.has("warpx4")) d.unknown();
  const Address to = d.address(0);
  const Source descriptor = d.source(1);
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    each(lanes, [&](int lane) {
      const auto target = static_cast<uint32_t>(to.of(warp, lane));
      const Matrix matrix = matrix_of(descriptor.lanes(warp)[lane]);
      if (matrix.swizzle != 0) throw Error("tcgen05.cp of a swizzled matrix");
      const auto group = group_of(warp, pair);
      machine.submit(queue_of(machine, group), [=, &machine] {
        for (Cta* cta : group) {
          cta->tensor.check(0, column_of(target), kTmemLanes, 4);
          for (int row = 0; row < 32; ++row) {
            const View view = cta->shared.at(matrix.offset(row, 0), 16);
            cta->shared.check_fenced(matrix.offset(row, 0), 16);
            for (int part = 0; part < 4; ++part) {
              const int cell = cta->tensor.index(32 * part + row, column_of(target));
              std::memcpy(&cta->tensor.cells[cell], view.data, 16);
              for (int i = 0; i < 4; ++i) {
                cta->tensor.defined[cell + i] =
                    View{view.data, view.defined + 4 * i}.all_defined(4);
              }
            }
          }
        }
        ++machine.counts["scale copies"];
      });
    });
    return Outcome::kNext;
  };
}

// 9.7.16.12.1 tcgen05.commit: arrives when all that was issued before is done.
Execute commit(Decoder& d) {
  const bool pair = is_pair(d), multicast = d.has("multicast::cluster");
  if (!d.has("mbarrier::arrive::one")) d.unknown();
  const Address barrier = d.address(0);
  const Source mask = multicast ? d.source(1) : Source{};
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    each(lanes, [&](int lane) {
      const uint32_t at = barrier.shared(warp, lane);
      uint64_t ranks = 1ull << (at >> kRankShift);
      if (multicast) ranks = mask.lanes(warp)[lane] & 0xFFFF;
      Cluster& cluster = *warp.cta->cluster;
      machine.submit(queue_of(machine, group_of(warp, pair)), [=, &machine, &cluster] {
        for (uint32_t r = 0; r < 16; ++r) {
          if (!(ranks >> r & 1)) continue;
          if (r >= cluster.ctas.size()) throw Error("multicast past the end of the cluster");
          cluster.ctas[r]->mbarrier(at & kOffsetMask).arrive(1);
        }
        ++machine.counts["commits"];
      });
    });
    return Outcome::kNext;
  };
}

// The instruction descriptor of .kind::mxf8f6f4, 9.7.16.4.2, table 44.
struct MmaDescriptor {
  Format a, b;
  int m, n, a_scale, b_scale;

  explicit MmaDescriptor(uint32_t bits)
      : a(static_cast<Format>(bits >> 7 & 7)),
        b(static_cast<Format>(bits >> 10 & 7)),
        m(static_cast<int>(bits >> 27 & 3) * 128),
        n(static_cast<int>(bits >> 17 & 63) * 8),
        a_scale(bits >> 29 & 3),
        b_scale(bits >> 4 & 3) {
    for (Format format : {a, b}) {
      if (format != Format::kE4M3 && format != Format::kE2M1) throw Error("unknown operand format");
    }
    // Sparsity, negation, transposition and reserved bits.
    if ((bits & 0x8701E04Fu) != 0) throw Error("unknown bits in the instruction descriptor");
    if ((bits >> 23 & 1) != 1) throw Error("scales are not UE8M0");
  }
};

// Rows of an operand with their scales, as the tensor core sees them.
std::vector<ScaledRow> load_rows(Cta& cta, const Matrix& matrix, Format format, int rows) {
  std::vector<ScaledRow> result;
  for (int r = 0; r < rows; ++r) {
    uint8_t codes[kMmaK];
    bool defined = true;
    for (int half = 0; half < 2; ++half) {
      const uint32_t at = matrix.offset(r, 16 * half);
      const int bytes = format == Format::kE4M3 ? 16 : 8;  // FP4 lies in the lower half
      const View view = cta.shared.at(at, 16);
      defined = defined && view.all_defined(bytes);
      cta.shared.check_fenced(at, bytes);
      for (int i = 0; i < 16; ++i) {
        codes[16 * half + i] = format == Format::kE4M3 ? view.data[i]
                               : i % 2 == 0            ? view.data[i / 2] & 15
                                                       : view.data[i / 2] >> 4;
      }
    }
    result.push_back(expand(codes, format, 127));
    result.back().defined = defined;
  }
  return result;
}

// 9.7.16.10.7.2: the scale of row r is in lane r % 32 of every part, column r / 32, byte `id`.
void apply_scales(const TensorMemory& memory, uint32_t address, int id,
                  std::vector<ScaledRow>& rows) {
  if (lane_of(address) != 0) throw Error("scales do not start in lane 0");
  const int byte = static_cast<int>(address >> 30);
  if (byte != 0 && byte != id)
    throw Error("the address names another byte of scales than the descriptor");
  const int columns = static_cast<int>(rows.size() + 31) / 32;
  memory.check(0, column_of(address), kTmemLanes, columns);
  for (size_t r = 0; r < rows.size(); ++r) {
    const int cell = memory.index(r % 32, column_of(address) + static_cast<int>(r / 32));
    for (int part = 1; part < 4; ++part) {
      if (memory.cells[cell + part * 32 * kTmemColumns] != memory.cells[cell]) {
        throw Error("the four copies of a scale differ");
      }
    }
    const int scale = memory.cells[cell] >> (8 * id) & 255;
    rows[r].nan = rows[r].nan || scale == 255;
    rows[r].defined = rows[r].defined && memory.defined[cell];
    for (int32_t& exponent : rows[r].exponent) exponent += scale - 127;
  }
}

struct Mma {
  uint32_t target;
  Matrix a, b;
  MmaDescriptor descriptor;
  uint32_t a_scales, b_scales;
  bool accumulate;
};

// One K = 32 step. With two thread blocks each holds 128 rows of A and of the result, and half of
// the rows of B: 9.7.16.10.5.
void run(const Mma& mma, const std::vector<Cta*>& group) {
  const auto blocks = static_cast<int>(group.size());
  const MmaDescriptor& descriptor = mma.descriptor;
  if (descriptor.m != 128 * blocks)
    throw Error("M of the descriptor does not fit the thread blocks");
  if (descriptor.n < 8 || descriptor.n > 256) throw Error("N of the descriptor is out of range");
  if (lane_of(mma.target) != 0) throw Error("the accumulator does not start in lane 0");
  std::vector<ScaledRow> columns;
  for (Cta* cta : group) {
    const auto part = load_rows(*cta, mma.b, descriptor.b, descriptor.n / blocks);
    columns.insert(columns.end(), part.begin(), part.end());
  }
  for (Cta* cta : group) {
    TensorMemory& memory = cta->tensor;
    memory.check(0, column_of(mma.target), kTmemLanes, descriptor.n);
    auto rows = load_rows(*cta, mma.a, descriptor.a, 128);
    apply_scales(memory, mma.a_scales, descriptor.a_scale, rows);
    auto scaled_columns = columns;
    apply_scales(memory, mma.b_scales, descriptor.b_scale, scaled_columns);
    for (int m = 0; m < kTmemLanes; ++m) {
      for (int n = 0; n < descriptor.n; ++n) {
        const int cell = memory.index(m, column_of(mma.target) + n);
        const uint32_t before = mma.accumulate ? memory.cells[cell] : 0;
        memory.cells[cell] =
            multiply_accumulate(rows[m], descriptor.a, scaled_columns[n], descriptor.b, before);
        memory.defined[cell] = rows[m].defined && scaled_columns[n].defined &&
                               (!mma.accumulate || memory.defined[cell]);
      }
    }
  }
}

// 9.7.16.10.9.1 tcgen05.mma .kind::mxf8f6f4.block_scale.
Execute mma(Decoder& d) {
  const bool pair = is_pair(d);
  if (!d.has("kind::mxf8f6f4") || !d.has("block_scale") || d.count() != 7) d.unknown();
  const Address target = d.address(0);
  const Source a = d.source(1), b = d.source(2), descriptor = d.source(3);
  const Address a_scales = d.address(4), b_scales = d.address(5);
  const Source accumulate = d.source(6);
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    each(lanes, [&](int i) {
      if (pair && warp.cta->rank % 2 != 0) throw Error(".cta_group::2 from the second of a pair");
      const Mma mma = {static_cast<uint32_t>(target.of(warp, i)),
                       matrix_of(a.lanes(warp)[i]),
                       matrix_of(b.lanes(warp)[i]),
                       MmaDescriptor(static_cast<uint32_t>(descriptor.lanes(warp)[i])),
                       static_cast<uint32_t>(a_scales.of(warp, i)),
                       static_cast<uint32_t>(b_scales.of(warp, i)),
                       accumulate.lanes(warp)[i] != 0};
      const auto group = group_of(warp, pair);
      machine.submit(queue_of(machine, group), [=, &machine] {
        run(mma, group);
        ++machine.counts["MMAs"];
      });
    });
    return Outcome::kNext;
  };
}

// tcgen05.fence and tcgen05.wait, 9.7.16.11 and 9.7.16.8.4: order that the emulator always has.
Execute order(Decoder&) {
  return [](Machine&, Warp&, uint32_t) { return Outcome::kNext; };
}

Execute tcgen05(Decoder& d) {
  const std::string& what = d.part(1);
  if (what == "alloc") return alloc(d);
  if (what == "dealloc") return dealloc(d);
  if (what == "relinquish_alloc_permit") return relinquish(d);
  if (what == "ld") return ld(d);
  if (what == "st") return st(d);
  if (what == "cp") return cp(d);
  if (what == "commit") return commit(d);
  if (what == "mma") return mma(d);
  if (what.rfind("fence::", 0) == 0 || what.rfind("wait::", 0) == 0) return order(d);
  d.unknown();
}

}  // namespace

void add_tcgen05(Table& table) { table["tcgen05"] = tcgen05; }

}  // namespace ptx
