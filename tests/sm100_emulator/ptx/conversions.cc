// cvt, PTX ISA section 9.7.9.21, and mov, 9.7.9.2.

#include <cmath>

#include "decode.h"

namespace ptx {
namespace {

float as_float(uint64_t bits) {
  const auto word = static_cast<uint32_t>(bits);
  float value;
  std::memcpy(&value, &word, 4);
  return value;
}

uint32_t float_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

// A finite value to the nearest float of `mantissa` stored bits whose exponents start at `least`
// (of the smallest normal number), ties to even: the magnitude in units of the format's encoding.
uint32_t round_magnitude(float value, int mantissa, int least) {
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude == 0) return 0;
  const int exponent = std::max(std::ilogb(magnitude), least);
  // nearbyint rounds to nearest even; a carry into the next exponent is the next encoding.
  const auto steps =
      static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, mantissa - exponent)));
  return (static_cast<uint32_t>(exponent - least) << mantissa) + steps;
}

uint32_t to_bf16(float value) {
  if (std::isnan(value)) return 0x7FFF;
  const uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000;
  if (std::isinf(value)) return sign | 0x7F80;
  return sign | std::min(round_magnitude(value, 7, -126), 0x7F80u);
}

uint32_t to_f16(float value) {
  if (std::isnan(value)) return 0x7FFF;
  const uint32_t sign = float_bits(value) >> 16 & 0x8000;
  if (std::isinf(value)) return sign | 0x7C00;
  return sign | std::min(round_magnitude(value, 10, -14), 0x7C00u);
}

// satfinite: what is too large becomes 448.
uint32_t to_e4m3(float value) {
  if (std::isnan(value)) return 0x7F;
  const uint32_t sign = float_bits(value) >> 24 & 0x80;
  if (std::isinf(value)) return sign | 0x7E;
  return sign | std::min(round_magnitude(value, 3, -6), 0x7Eu);
}

float from_f16(uint32_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  return sign * std::ldexp(static_cast<float>(mantissa + (exponent ? 1024 : 0)),
                           std::max(exponent, 1) - 25);
}

using Convert = uint32_t (*)(float);

// cvt.rn.<to>x2.f32 d, a, b: a in the upper half.
Execute convert_pair(Decoder& d, Convert convert, int width) {
  const int to = d.destination(0);
  const Source a = d.data(1), b = d.data(2);
  if (width == 16) d.packs(a, b);
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    each(lanes, [&](int i) {
      warp.registers[to][i] =
          convert(as_float(a.lanes(warp)[i])) << width | convert(as_float(b.lanes(warp)[i]));
    });
    return Outcome::kNext;
  };
}

template <class F>
Execute convert_each(Decoder& d, F f) {
  const int to = d.destination(0);
  const Source a = d.data(1);
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    each(lanes, [&](int i) { warp.registers[to][i] = f(a.lanes(warp)[i]); });
    return Outcome::kNext;
  };
}

Execute cvt(Decoder& d) {
  const std::string from = d.type(), to = d.part(d.instruction.opcode.size() - 2);
  const bool rn = d.has("rn"), satfinite = d.has("satfinite");
  if (from == "f32" && rn && !satfinite) {
    if (to == "bf16x2") return convert_pair(d, to_bf16, 16);
    if (to == "f16x2") return convert_pair(d, to_f16, 16);
    if (to == "bf16") return convert_each(d, [](uint64_t x) { return to_bf16(as_float(x)); });
    if (to == "f16") return convert_each(d, [](uint64_t x) { return to_f16(as_float(x)); });
  }
  if (from == "f32" && rn && satfinite && to == "e4m3x2") return convert_pair(d, to_e4m3, 8);
  if (from == "f32" && to == "f32" && d.part(1) == "sat") {
    return convert_each(d, [](uint64_t x) {
      const float value = as_float(x);  // NaN becomes +0
      return float_bits(std::isnan(value) ? 0.0f : std::fmin(std::fmax(value, 0.0f), 1.0f));
    });
  }
  if (to == "f32" && from == "bf16") return convert_each(d, [](uint64_t x) { return x << 16; });
  if (to == "f32" && from == "f16") {
    return convert_each(d, [](uint64_t x) {
      const float value = from_f16(static_cast<uint32_t>(x));
      return std::isnan(value) ? 0x7FFFFFFFu : float_bits(value);
    });
  }
  if (to == "f32" && (from == "s32" || from == "u32") && rn) {
    const bool is_signed = from == "s32";
    return convert_each(d, [is_signed](uint64_t x) {
      return float_bits(is_signed ? static_cast<float>(static_cast<int32_t>(x))
                                  : static_cast<float>(static_cast<uint32_t>(x)));
    });
  }
  const std::string kinds = "sub";
  if (d.instruction.opcode.size() != 3 || kinds.find(from[0]) == std::string::npos ||
      kinds.find(to[0]) == std::string::npos || from[0] == 'b' || to[0] == 'b') {
    d.unknown();
  }
  const int in = 8 * type_bytes(from), out = 8 * type_bytes(to);
  const bool is_signed = from[0] == 's';
  return convert_each(d, [=](uint64_t x) {
    x <<= 64 - in;
    x = is_signed ? static_cast<uint64_t>(static_cast<int64_t>(x) >> (64 - in)) : x >> (64 - in);
    return out == 64 ? x : x & ((1ull << out) - 1);
  });
}

Execute unpack(Decoder& d) {
  std::vector<int> to;
  for (const std::string& name : d.vector(0)) to.push_back(d.destination(name));
  const Source a = d.data(1);
  const int width = 8 * type_bytes(d.type()) / static_cast<int>(to.size());
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    const Lanes value = a.lanes(warp);
    for (size_t part = 0; part < to.size(); ++part) {
      if (to[part] < 0) continue;
      each(lanes, [&](int i) {
        warp.registers[to[part]][i] = value[i] >> (part * width) & ((1ull << width) - 1);
      });
    }
    return Outcome::kNext;
  };
}

Execute pack(Decoder& d) {
  const int to = d.destination(0);
  std::vector<Source> parts;
  for (const std::string& name : d.vector(1)) parts.push_back(d.data(name));
  const int width = 8 * type_bytes(d.type()) / static_cast<int>(parts.size());
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    Lanes result = {};
    for (size_t part = 0; part < parts.size(); ++part) {
      each(lanes, [&](int i) {
        result[i] |= (parts[part].lanes(warp)[i] & ((1ull << width) - 1)) << (part * width);
      });
    }
    each(lanes, [&](int i) { warp.registers[to][i] = result[i]; });
    return Outcome::kNext;
  };
}

Execute mov(Decoder& d) {
  if (d.type() == "b128") d.unknown();
  if (d.text(0).front() == '{') return unpack(d);
  if (d.text(1).front() == '{') return pack(d);
  const int bits = d.type() == "pred" ? 1 : 8 * type_bytes(d.type());
  const uint64_t mask = bits == 64 ? ~0ull : (1ull << bits) - 1;
  return convert_each(d, [mask](uint64_t x) { return x & mask; });
}

}  // namespace

void add_conversions(Table& table) { table["cvt"] = cvt, table["mov"] = mov; }

}  // namespace ptx
