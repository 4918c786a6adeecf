// Hopper's tensor core, PTX ISA section 9.7.15: what the comparison with an H200 needs of it. Sums
// are exact here; a GPU's own rounding of sums that are not is not modelled.

#include <cmath>

#include "decode.h"
#include "matrix.h"

namespace ptx {
namespace {

// A matrix descriptor, 9.7.15.5.1.2: swizzles of 128, 64 and 32 bytes are 1, 2 and 3.
Matrix matrix_of(uint64_t bits) {
  if ((bits >> 49 & 7) != 0) throw Error("unknown matrix descriptor");
  const int mode = static_cast<int>(bits >> 62);
  return {bits, mode == 0 ? 0 : 4 - mode};
}

double value_of(const uint8_t* data, bool bf16) {
  if (bf16) {
    const uint32_t bits = static_cast<uint32_t>(data[0] | data[1] << 8) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  const int code = data[0], exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return NAN;
  const double magnitude =
      std::ldexp(mantissa + (exponent != 0 ? 8 : 0), std::max(exponent, 1) - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

// An element of an operand in shared memory, which the async proxy reads.
double element(Cta& cta, const Matrix& matrix, int r, int k, bool bf16) {
  const int bytes = bf16 ? 2 : 1;
  const uint32_t at = matrix.offset(r, k * bytes);
  const View view = cta.shared.at(at, bytes);
  if (!view.all_defined(bytes)) throw Error("wgmma of memory that nobody wrote");
  cta.shared.check_fenced(at, bytes);
  return value_of(view.data, bf16);
}

// 9.7.15.5.2 wgmma.mma_async: a warp computes its 16 rows of 64. Done at once.
Execute mma(Decoder& d) {
  const bool bf16 = d.type() == "bf16" && d.part(6) == "bf16";
  if ((!bf16 && !(d.type() == "e4m3" && d.part(6) == "e4m3")) || d.part(5) != "f32") d.unknown();
  const std::string& shape = d.part(4);
  const auto n = std::stoi(shape.substr(4, shape.find('k') - 4));
  const int depth = bf16 ? 16 : 32;
  if (shape != "m64n" + std::to_string(n) + "k" + std::to_string(depth)) d.unknown();
  const bool in_registers = d.text(1).front() == '{';
  std::vector<int> to;
  std::vector<Source> before;
  for (const std::string& name : d.vector(0)) {
    before.push_back(d.data(name));
    to.push_back(d.destination(name));
  }
  if (static_cast<int>(to.size()) != n / 2) d.unknown();
  std::vector<Source> a;
  if (in_registers) {
    for (const std::string& name : d.vector(1)) a.push_back(d.source(name));
  } else {
    a.push_back(d.source(1));
  }
  const Source b = d.source(2), accumulate = d.source(3);
  // Neither negated nor transposed.
  for (size_t i = 4; i < d.count(); ++i) {
    if (d.text(i) != (i < 6 ? "1" : "0")) d.unknown();
  }
  return [=](Machine& machine, Warp& warp, uint32_t lanes) {
    if (lanes != kAllLanes) throw Error("not all lanes of the warp are here");
    ++machine.events;
    Cta& cta = *warp.cta;
    const Matrix columns = matrix_of(b.lanes(warp)[0]);
    const bool add = accumulate.lanes(warp)[0] != 0;
    // A fragment in registers: 4 bytes of register j are at row t / 4 + 8 (j % 2), byte
    // 4 (t % 4) + 16 (j / 2) along K.
    const auto a_element = [&](int row, int k) {
      const int bytes = bf16 ? 2 : 1, byte = k * bytes;
      if (!in_registers) {
        const Matrix rows = matrix_of(a[0].lanes(warp)[0]);
        return element(cta, rows, 16 * (warp.index % 4) + row, k, bf16);
      }
      const int lane = row % 8 * 4 + byte % 16 / 4, j = row / 8 + 2 * (byte / 16);
      const auto word = static_cast<uint32_t>(a[j].lanes(warp)[lane]);
      uint8_t data[4];
      std::memcpy(data, &word, 4);
      return value_of(data + byte % 4, bf16);
    };
    for (int i = 0; i < n / 2; ++i) {
      Lanes result = {};
      each(lanes, [&](int t) {
        const int row = t / 4 + 8 * (i / 2 % 2), column = 8 * (i / 4) + 2 * (t % 4) + i % 2;
        double sum = 0;
        for (int k = 0; k < depth; ++k) {
          sum += a_element(row, k) * element(cta, columns, column, k, bf16);
        }
        const auto word = static_cast<uint32_t>(before[i].lanes(warp)[t]);
        float carried;
        std::memcpy(&carried, &word, 4);
        const auto rounded = static_cast<float>(sum + (add ? carried : 0));
        uint32_t bits;
        std::memcpy(&bits, &rounded, 4);
        result[t] = bits;
      });
      warp.registers[to[i]] = result;
    }
    return Outcome::kNext;
  };
}

Execute wgmma(Decoder& d) {
  const std::string& what = d.part(1);
  if (what == "mma_async") return mma(d);
  // 9.7.15.7: order that the emulator always has.
  if (what != "fence" && what != "commit_group" && what != "wait_group") d.unknown();
  return [](Machine&, Warp&, uint32_t) { return Outcome::kNext; };
}

}  // namespace

void add_sm90(Table& table) { table["wgmma"] = wgmma; }

}  // namespace ptx
