// Integer and floating-point arithmetic, comparison and logic: PTX ISA sections 9.7.1 to 9.7.7.

#include <cfenv>
#include <cmath>
#include <type_traits>

#include "decode.h"

namespace ptx {
namespace {

template <class T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <class T>
uint64_t to_bits(T value) {
  if constexpr (std::is_same_v<T, bool>) return value;
  if constexpr (std::is_same_v<T, float>) {
    if (std::isnan(value)) return 0x7FFFFFFF;  // PTX ISA 9.7.3: the canonical NaN
  }
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

// d[lane] = f(a, b, c) of type T.
template <class T, class F>
Execute map(Decoder& d, int inputs, F f) {
  const int to = d.destination(0);
  const Source a = d.data(1);
  const Source b = inputs > 1 ? d.data(2) : a;
  const Source c = inputs > 2 ? d.data(3) : a;
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    const Lanes &x = a.lanes(warp), &y = b.lanes(warp), &z = c.lanes(warp);
    Lanes& result = warp.registers[to];
    each(lanes, [&](int i) {
      result[i] = to_bits(f(from_bits<T>(x[i]), from_bits<T>(y[i]), from_bits<T>(z[i])));
    });
    return Outcome::kNext;
  };
}

template <class F>
Execute by_integer(Decoder& d, int inputs, F f) {
  const std::string& t = d.type();
  if (t == "pred") {
    return map<uint8_t>(d, inputs, [f](uint8_t a, uint8_t b, uint8_t c) {
      return static_cast<uint8_t>(f(a, b, c) & 1);
    });
  }
  if (t == "s16") return map<int16_t>(d, inputs, f);
  if (t == "u16" || t == "b16") return map<uint16_t>(d, inputs, f);
  if (t == "s32") return map<int32_t>(d, inputs, f);
  if (t == "u32" || t == "b32") return map<uint32_t>(d, inputs, f);
  if (t == "s64") return map<int64_t>(d, inputs, f);
  if (t == "u64" || t == "b64") return map<uint64_t>(d, inputs, f);
  d.unknown();
}

// Wraps around without the undefined behaviour of C++.
template <class T, class F>
auto wrap(T a, T b, F f) {
  using U = std::make_unsigned_t<T>;
  return static_cast<T>(
      f(static_cast<uint64_t>(static_cast<U>(a)), static_cast<uint64_t>(static_cast<U>(b))));
}

float flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

// 9.7.3.3 to 9.7.3.5: round to nearest even unless the instruction says otherwise.
template <class F>
Execute float_binary(Decoder& d, F f) {
  if (d.has("rz") || d.has("rm") || d.has("rp") || d.has("sat")) d.unknown();
  if (d.has("ftz")) {
    return map<float>(d, 2, [f](float a, float b, float) { return flush(f(flush(a), flush(b))); });
  }
  return map<float>(d, 2, [f](float a, float b, float) { return f(a, b); });
}

Execute add(Decoder& d) {
  if (d.type() == "f32") return float_binary(d, [](float a, float b) { return a + b; });
  if (d.has("cc") || d.has("sat")) d.unknown();
  return by_integer(d, 2, [](auto a, auto b, auto) {
    return wrap(a, b, [](uint64_t x, uint64_t y) { return x + y; });
  });
}

Execute sub(Decoder& d) {
  if (d.type() == "f32") return float_binary(d, [](float a, float b) { return a - b; });
  if (d.has("cc") || d.has("sat")) d.unknown();
  return by_integer(d, 2, [](auto a, auto b, auto) {
    return wrap(a, b, [](uint64_t x, uint64_t y) { return x - y; });
  });
}

// The upper half of a product.
template <class T>
T high(T a, T b) {
  using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  return static_cast<T>((static_cast<Wide>(a) * static_cast<Wide>(b)) >> (8 * sizeof(T)));
}

// mul.wide and mad.wide, 9.7.1.3 and 9.7.1.4: twice as many bits as the operands have.
template <class T, class Wide>
Execute wide(Decoder& d, bool addend) {
  const int to = d.destination(0);
  const Source a = d.data(1), b = d.data(2);
  const Source c = addend ? d.data(3) : a;
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    const Lanes &x = a.lanes(warp), &y = b.lanes(warp), &z = c.lanes(warp);
    each(lanes, [&](int i) {
      const auto product = static_cast<uint64_t>(static_cast<int64_t>(from_bits<T>(x[i])) *
                                                 static_cast<int64_t>(from_bits<T>(y[i])));
      warp.registers[to][i] =
          static_cast<std::make_unsigned_t<Wide>>(product + (addend ? z[i] : 0));
    });
    return Outcome::kNext;
  };
}

Execute multiply(Decoder& d, bool addend) {
  const int inputs = addend ? 3 : 2;
  if (d.has("wide")) {
    const std::string& t = d.type();
    if (t == "s16") return wide<int16_t, int32_t>(d, addend);
    if (t == "u16") return wide<uint16_t, uint32_t>(d, addend);
    if (t == "s32") return wide<int32_t, int64_t>(d, addend);
    if (t == "u32") return wide<uint32_t, uint64_t>(d, addend);
    d.unknown();
  }
  if (d.has("hi")) {
    return by_integer(d, inputs, [addend](auto a, auto b, auto c) {
      using T = decltype(a);
      return wrap(high(a, b), addend ? c : T{0}, [](uint64_t x, uint64_t y) { return x + y; });
    });
  }
  if (!d.has("lo")) d.unknown();
  return by_integer(d, inputs, [addend](auto a, auto b, auto c) {
    using T = decltype(a);
    const T product = wrap(a, b, [](uint64_t x, uint64_t y) { return x * y; });
    return wrap(product, addend ? c : T{0}, [](uint64_t x, uint64_t y) { return x + y; });
  });
}

Execute mul(Decoder& d) {
  if (d.type() == "f32") return float_binary(d, [](float a, float b) { return a * b; });
  return multiply(d, false);
}

Execute mad(Decoder& d) { return multiply(d, true); }

// 9.7.3.6: one rounding.
Execute fma(Decoder& d) {
  if (d.type() != "f32" || d.has("sat")) d.unknown();
  const int mode = d.has("rm")   ? FE_DOWNWARD
                   : d.has("rz") ? FE_TOWARDZERO
                   : d.has("rp") ? FE_UPWARD
                                 : FE_TONEAREST;
  const bool ftz = d.has("ftz");
  return map<float>(d, 3, [mode, ftz](float a, float b, float c) {
    if (ftz) a = flush(a), b = flush(b), c = flush(c);
    std::fesetround(mode);
    const volatile float result = std::fma(a, b, c);
    std::fesetround(FE_TONEAREST);
    return ftz ? flush(result) : float{result};
  });
}

// 9.7.3.8 (div.rn), 9.7.1.7 and 9.7.1.8; integers by zero have no meaning.
Execute div(Decoder& d) {
  if (d.type() == "f32") {
    if (!d.has("rn")) d.unknown();
    return float_binary(d, [](float a, float b) { return a / b; });
  }
  return by_integer(d, 2, [](auto a, auto b, auto) {
    if (b == 0) throw Error("division by zero");
    return static_cast<decltype(a)>(a / b);
  });
}

Execute rem(Decoder& d) {
  return by_integer(d, 2, [](auto a, auto b, auto) {
    if (b == 0) throw Error("division by zero");
    return static_cast<decltype(a)>(a % b);
  });
}

// 9.7.3.23. An approximation of 2 ulp on the hardware; here the nearest.
Execute ex2(Decoder& d) {
  if (d.type() != "f32") d.unknown();
  return map<float>(d, 1, [](float a, float, float) {
    return flush(static_cast<float>(std::exp2(static_cast<double>(flush(a)))));
  });
}

Execute neg(Decoder& d) {
  if (d.type() == "f32") return map<float>(d, 1, [](float a, float, float) { return -a; });
  return by_integer(d, 1, [](auto a, auto, auto) {
    return wrap(a, a, [](uint64_t x, uint64_t) { return 0 - x; });
  });
}

Execute absolute(Decoder& d) {
  if (d.type() == "f32")
    return map<float>(d, 1, [](float a, float, float) { return std::fabs(a); });
  return by_integer(d, 1,
                    [](auto a, auto, auto) { return a < 0 ? static_cast<decltype(a)>(-a) : a; });
}

Execute minimum(Decoder& d) {
  if (d.type() == "f32") {
    return float_binary(d, [](float a, float b) { return std::fmin(a, b); });
  }
  return by_integer(d, 2, [](auto a, auto b, auto) { return a < b ? a : b; });
}

Execute maximum(Decoder& d) {
  if (d.type() == "f32") {
    return float_binary(d, [](float a, float b) { return std::fmax(a, b); });
  }
  return by_integer(d, 2, [](auto a, auto b, auto) { return a > b ? a : b; });
}

Execute bit_and(Decoder& d) {
  return by_integer(d, 2, [](auto a, auto b, auto) { return static_cast<decltype(a)>(a & b); });
}
Execute bit_or(Decoder& d) {
  return by_integer(d, 2, [](auto a, auto b, auto) { return static_cast<decltype(a)>(a | b); });
}
Execute bit_xor(Decoder& d) {
  return by_integer(d, 2, [](auto a, auto b, auto) { return static_cast<decltype(a)>(a ^ b); });
}
Execute bit_not(Decoder& d) {
  return by_integer(d, 1, [](auto a, auto, auto) { return static_cast<decltype(a)>(~a); });
}

// 9.7.8.8 and 9.7.8.9: amounts past the width shift everything out. The amount is 32 bits wide.
Execute shift(Decoder& d, bool left) {
  const int to = d.destination(0), width = 8 * type_bytes(d.type());
  const bool is_signed = d.type()[0] == 's';
  const Source a = d.data(1), amounts = d.data(2);
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    const uint64_t mask = width == 64 ? ~0ull : (1ull << width) - 1;
    each(lanes, [&](int i) {
      const uint64_t value = a.lanes(warp)[i];
      const auto amount = static_cast<uint32_t>(amounts.lanes(warp)[i]);
      uint64_t result;
      if (left) {
        result = amount >= static_cast<uint32_t>(width) ? 0 : value << amount;
      } else if (is_signed) {
        const auto extended = static_cast<int64_t>(value << (64 - width)) >> (64 - width);
        result = static_cast<uint64_t>(extended >> std::min<uint32_t>(amount, 63));
      } else {
        result = amount >= static_cast<uint32_t>(width) ? 0 : (value & mask) >> amount;
      }
      warp.registers[to][i] = result & mask;
    });
    return Outcome::kNext;
  };
}

Execute shl(Decoder& d) { return shift(d, true); }
Execute shr(Decoder& d) { return shift(d, false); }

// 9.7.1.16 and 9.7.1.17.
Execute brev(Decoder& d) {
  return map<uint32_t>(d, 1, [](uint32_t a, uint32_t, uint32_t) {
    uint32_t result = 0;
    for (int i = 0; i < 32; ++i) result |= (a >> i & 1) << (31 - i);
    return result;
  });
}

Execute bfind(Decoder& d) {
  if (d.type() != "u32") d.unknown();
  const bool amount = d.has("shiftamt");
  return map<uint32_t>(d, 1, [amount](uint32_t a, uint32_t, uint32_t) {
    if (a == 0) return 0xFFFFFFFFu;
    const uint32_t zeros = __builtin_clz(a);
    return amount ? zeros : 31 - zeros;
  });
}

// 9.7.8.7: each nibble of the selector names a byte, with replication of its sign by bit 3.
Execute prmt(Decoder& d) {
  if (d.instruction.opcode.size() != 2) d.unknown();
  return map<uint32_t>(d, 3, [](uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t pick = selector >> (4 * i) & 15;
      uint32_t byte = both >> (8 * (pick & 7)) & 255;
      if (pick & 8) byte = byte & 128 ? 255 : 0;
      result |= byte << (8 * i);
    }
    return result;
  });
}

// 9.7.8.6: any function of three bits.
Execute lop3(Decoder& d) {
  const auto table = static_cast<uint32_t>(std::stoul(d.text(4), nullptr, 0));
  return map<uint32_t>(d, 3, [table](uint32_t a, uint32_t b, uint32_t c) {
    uint32_t result = 0;
    for (int i = 0; i < 8; ++i) {
      if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    }
    return result;
  });
}

template <class T>
bool compare(const std::string& how, T a, T b) {
  if (how == "eq") return a == b;
  if (how == "ne") return a != b && !(a != a) && !(b != b);
  if (how == "lt" || how == "lo") return a < b;
  if (how == "le" || how == "ls") return a <= b;
  if (how == "gt" || how == "hi") return a > b;
  if (how == "ge" || how == "hs") return a >= b;
  if (how == "neu") return !(a == b);
  if (how == "nan") return a != a || b != b;
  throw Error("unknown comparison " + how);
}

// 9.7.6.1 setp.
Execute setp(Decoder& d) {
  if (d.instruction.opcode.size() != 3) d.unknown();
  const std::string how = d.part(1), t = d.type();
  compare(how, 0, 0);
  if (t == "f32")
    return map<float>(d, 2, [how](float a, float b, float) { return compare(how, a, b); });
  return by_integer(d, 2, [how](auto a, auto b, auto) { return compare(how, a, b); });
}

// 9.7.6.3 selp.
Execute selp(Decoder& d) {
  const int to = d.destination(0);
  const uint64_t mask = type_bytes(d.type()) == 8 ? ~0ull : (1ull << 8 * type_bytes(d.type())) - 1;
  const Source a = d.data(1), b = d.data(2), which = d.data(3);
  return [=](Machine&, Warp& warp, uint32_t lanes) {
    each(lanes, [&](int i) {
      const Lanes& from = which.lanes(warp)[i] ? a.lanes(warp) : b.lanes(warp);
      warp.registers[to][i] = from[i] & mask;
    });
    return Outcome::kNext;
  };
}

}  // namespace

void add_arithmetic(Table& table) {
  table["add"] = add, table["sub"] = sub, table["mul"] = mul, table["mad"] = mad;
  table["fma"] = fma, table["div"] = div, table["rem"] = rem, table["ex2"] = ex2;
  table["neg"] = neg, table["abs"] = absolute, table["min"] = minimum, table["max"] = maximum;
  table["and"] = bit_and, table["or"] = bit_or, table["xor"] = bit_xor, table["not"] = bit_not;
  table["shl"] = shl, table["shr"] = shr, table["brev"] = brev, table["bfind"] = bfind;
  table["prmt"] = prmt, table["lop3"] = lop3, table["setp"] = setp, table["selp"] = selp;
}

}  // namespace ptx
