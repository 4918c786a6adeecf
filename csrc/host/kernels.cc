// The CPU kernels, for the instruction set that the compiler was told of and under its name,
// JAX_W4A8_ISA. No other file's inline functions may be used here: the linker would keep one copy
// for all instruction sets.

#include "csrc/host/kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define JAX_W4A8_TEXT(name) #name
#define JAX_W4A8_NAME_OF(isa) JAX_W4A8_TEXT(isa)
#define JAX_W4A8_PASTE(isa) kernels_##isa
#define JAX_W4A8_FUNCTION_OF(isa) JAX_W4A8_PASTE(isa)

namespace jax_w4a8::host {
namespace {
namespace JAX_W4A8_ISA {

#include "csrc/host/scalar.h"
#include "csrc/host/simd.h"

// A chunk is one register of packed codes: lane l holds 8 consecutive k, so a weight block is 4
// lanes. A laid out row has, for each chunk and each nibble i, the activations k = 8 * lane + i of
// all lanes.
constexpr int64_t kChunk = 8 * kLanes;
constexpr int64_t kBlocksOfChunk = kLanes / 4;
constexpr int64_t kChunkBytes = 4 * kLanes;

// Scales are taken relative to their row's largest, which becomes 2^kTop: sums over any K then stay
// below float32's largest, and products of the smallest above its smallest normal, while a row's
// scales differ by no more than kXSpread or kWeightSpread binades.
constexpr int32_t kTop = 40, kXSpread = 120, kWeightSpread = 70;

// Rows of x and of the weight that share what is loaded of the other.
constexpr int kXRows = kLanes == 16 ? 6 : 2;
constexpr int kWeightRows = 2;
constexpr int64_t kRowsAhead = 8;

int64_t chunks_of(int64_t k) { return (k + kChunk - 1) / kChunk; }

int64_t laid_out_size(int64_t k) { return chunks_of(k) * kChunk; }

// ---- Quantising activations

// The float32 bits of x[0, count), subnormals of float32 and bfloat16 replaced by zeros of their
// sign.
void read_bits(const void* x, Float type, int64_t begin, int64_t count, uint32_t* bits) {
  if (type == Float::kF16) {
    const uint16_t* from = (const uint16_t*)x + begin;
    for (int64_t i = 0; i < count; ++i) bits[i] = bits_of_half(from[i]);
    return;
  }
  if (type == Float::kF32) {
    __builtin_memcpy(bits, (const uint32_t*)x + begin, 4 * count);
  } else {
    const uint16_t* from = (const uint16_t*)x + begin;
    for (int64_t i = 0; i < count; ++i) bits[i] = (uint32_t)from[i] << 16;
  }
  for (int64_t i = 0; i < count; ++i) {
    bits[i] = (bits[i] & 0x7fffffff) < 0x00800000 ? bits[i] & 0x80000000 : bits[i];
  }
}

// E4M3 of a finite number that 448 bounds up to rounding.
inline uint8_t encode_e4m3(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffff;
  // 16384 has the ulp of E4M3's subnormals: the sum rounds to them.
  const uint32_t subnormal = bits_of(float_of(magnitude) + 16384.f) - bits_of(16384.f);
  const uint32_t normal = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
  const uint32_t code = magnitude < (121u << 23) ? subnormal : (normal > 0x7e ? 0x7e : normal);
  return (uint8_t)(code | (bits >> 24 & 0x80));
}

void quantize_row(const void* x, Float type, const Shape& shape, uint8_t* codes, uint8_t* scales) {
  constexpr int64_t kPiece = 128;
  uint32_t bits[kPiece];
  for (int64_t block = 0; block < shape.x_blocks(); ++block) {
    const int64_t begin = block * shape.block_width();
    const int64_t end =
        begin + shape.block_width() < shape.k ? begin + shape.block_width() : shape.k;
    uint32_t amax = 0;
    for (int64_t at = begin; at < end; at += kPiece) {
      const int64_t count = end - at < kPiece ? end - at : kPiece;
      read_bits(x, type, at, count, bits);
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t magnitude = bits[i] & 0x7fffffff;
        amax = magnitude > amax ? magnitude : amax;
      }
    }
    if (amax >= 0x7f800000) {
      scales[block] = 255;
      __builtin_memset(codes + begin, 0x7f, end - begin);
      continue;
    }
    // 2^ceil(log2(amax / 448)): 448 is 2^8 with the mantissa 0x600000.
    int32_t scale = (int32_t)(amax >> 23) - 8 + ((amax & 0x7fffff) > 0x600000);
    scale = amax == 0 ? 127 : (scale < 0 ? 0 : scale);
    scales[block] = (uint8_t)scale;
    const float inverse = power_of_two(127 - scale);
    for (int64_t at = begin; at < end; at += kPiece) {
      const int64_t count = end - at < kPiece ? end - at : kPiece;
      read_bits(x, type, at, count, bits);
      for (int64_t i = 0; i < count; ++i)
        codes[at + i] = encode_e4m3(bits_of(float_of(bits[i]) * inverse));
    }
  }
}

// ---- Laying rows of activations out

bool all_zero(const uint8_t* codes, int64_t count) {
  uint8_t any = 0;
  for (int64_t i = 0; i < count; ++i) any |= codes[i];
  return (any & 0x7f) == 0;
}

int32_t lay_out_row(XRow x, const Shape& shape, float* laid_out) {
  float values[256];
  for (int code = 0; code < 256; ++code) values[code] = decode_e4m3((uint8_t)code);

  // Blocks of zeros have no say: their scale is arbitrary.
  int32_t lowest = 255, highest = 0;
  const int64_t width = shape.block_width();
  for (int64_t block = 0; block < shape.x_blocks(); ++block) {
    const int32_t scale = x.scales[block];
    const int64_t count = shape.k - block * width < width ? shape.k - block * width : width;
    if (scale == 255 || all_zero(x.codes + block * width, count)) continue;
    lowest = scale < lowest ? scale : lowest;
    highest = scale > highest ? scale : highest;
  }
  __builtin_memset(laid_out, 0, 4 * laid_out_size(shape.k));
  if (highest - lowest > kXSpread) return kWideRow;

  for (int64_t block = 0; block < shape.x_blocks(); ++block) {
    const int32_t scale = x.scales[block];
    const int32_t exponent = scale > highest ? 0 : scale - highest + kTop;
    const float factor =
        scale == 255 ? float_of(0x7fc00000) : (exponent < -126 ? 0 : power_of_two(exponent));
    const int64_t end = (block + 1) * width < shape.k ? (block + 1) * width : shape.k;
    for (int64_t k = block * width; k < end; ++k) {
      const int64_t chunk = k / kChunk, lane = k % kChunk / 8, nibble = k % 8;
      laid_out[chunk * kChunk + nibble * kLanes + lane] = values[x.codes[k]] * factor;
    }
  }
  return highest - 127 - kTop;
}

// ---- Multiplying

// A row of the weight: its whole chunks, the rest padded with zeros, and a factor for every lane of
// every chunk.
struct WeightRow {
  const uint8_t* codes;
  const float* factors;
  alignas(64) uint8_t tail[kChunkBytes];
};

// Lowest and highest scale of a weight row that are not NaN.
struct Range {
  int32_t lowest, highest;
};

Range range_of(const uint8_t* scales, int64_t blocks) {
  // One more than a scale, so that NaN, 255, becomes the smallest of all.
  uint8_t lowest = 255, next_highest = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const uint8_t next = (uint8_t)(scales[block] + 1);
    lowest = scales[block] < lowest ? scales[block] : lowest;
    next_highest = next > next_highest ? next : next_highest;
  }
  return {lowest, next_highest - 1};
}

// The same of the blocks that are not zeros.
Range range_of_nonzero(const uint8_t* scales, const uint8_t* codes, int64_t blocks) {
  Range range = {255, -1};
  for (int64_t block = 0; block < blocks; ++block) {
    uint8_t any = 0;
    for (int i = 0; i < 16; ++i) any |= codes[16 * block + i] & 0x77;
    if (any == 0 || scales[block] == 255) continue;
    range.lowest = scales[block] < range.lowest ? scales[block] : range.lowest;
    range.highest = scales[block] > range.highest ? scales[block] : range.highest;
  }
  return range;
}

// 2^(scale + offset - 127) of each lane; `packed` has the scales of one chunk's blocks, a byte
// each.
inline Floats lane_factors(uint32_t packed, int32_t offset) {
  const Ints scale = (Ints)((packed >> kShiftOfLane) & 255);
  // Blocks of zeros may lie outside the range; what multiplies them need only be finite.
  Ints field = scale + offset;
  field = field < 0 ? 0 : field;
  field = field > kTop + 127 ? kTop + 127 : field;
  return (Floats)(scale == 255 ? 0x7fc00000 : field << 23);
}

// Fills in `factors`, [chunks, kLanes]; gives the exponent that they are relative to, or kWideRow.
int32_t scale_factors(const uint8_t* scales, const uint8_t* codes, int64_t blocks, int64_t chunks,
                      float* factors) {
  Range range = range_of(scales, blocks);
  if (range.highest - range.lowest > kWeightSpread) range = range_of_nonzero(scales, codes, blocks);
  if (range.highest - range.lowest > kWeightSpread) return kWideRow;
  const int32_t offset = kTop + 127 - range.highest;
  const int64_t whole = blocks / kBlocksOfChunk;
  for (int64_t chunk = 0; chunk < whole; ++chunk) {
    uint32_t packed = 0;
    __builtin_memcpy(&packed, scales + chunk * kBlocksOfChunk, kBlocksOfChunk);
    store(factors + chunk * kLanes, lane_factors(packed, offset));
  }
  if (whole < chunks) {
    uint32_t packed = 0;
    for (int64_t block = whole * kBlocksOfChunk; block < blocks; ++block) {
      packed |= (uint32_t)scales[block] << (8 * (block % kBlocksOfChunk));
    }
    store(factors + whole * kLanes, lane_factors(packed, offset));
  }
  return range.highest - 127 - kTop;
}

// The sums of X rows of activations with W rows of the weight, added up chunk by chunk in Totals:
// Floats or Doubles.
template <int X, int W, class Totals>
void dots(const float* x, int64_t stride, const WeightRow* weight, int64_t whole, int64_t chunks,
          double (*sums)[W]) {
  // Rows are read once and in order; short ones end before the hardware has learnt to read ahead.
  const int64_t ahead = kRowsAhead * (weight[W - 1].codes - weight[0].codes);
  Totals totals[X][W] = {};
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    Bits packed[W];
    for (int w = 0; w < W; ++w) {
      __builtin_prefetch(weight[w].codes + chunk * kChunkBytes + ahead);
      packed[w] =
          load<Bits>(chunk < whole ? weight[w].codes + chunk * kChunkBytes : weight[w].tail);
    }
    Floats parts[X][W] = {};
    const float* chunk_x = x + chunk * kChunk;
#pragma GCC unroll 8
    for (int nibble = 0; nibble < 8; ++nibble) {
      Floats values[W];
      for (int w = 0; w < W; ++w) values[w] = decode_nibbles(packed[w], nibble);
      for (int m = 0; m < X; ++m) {
        const Floats activations = load<Floats>(chunk_x + m * stride + nibble * kLanes);
        for (int w = 0; w < W; ++w) parts[m][w] += activations * values[w];
      }
    }
    for (int w = 0; w < W; ++w) {
      const Floats factors = load<Floats>(weight[w].factors + chunk * kLanes);
      for (int m = 0; m < X; ++m) add_scaled(totals[m][w], parts[m][w], factors);
    }
  }
  for (int m = 0; m < X; ++m) {
    for (int w = 0; w < W; ++w) sums[m][w] = sum(totals[m][w]);
  }
}

void write(void* y, Float type, int64_t at, double value) {
  const float rounded = (float)value;
  if (type == Float::kF32) {
    ((float*)y)[at] = rounded;
  } else {
    ((uint16_t*)y)[at] = type == Float::kBF16 ? to_bfloat16(rounded) : to_float16(rounded);
  }
}

struct Columns {
  const Rows& rows;
  const Shape& shape;
  WeightRow weight[kWeightRows];
  int32_t exponents[kWeightRows];
  Weight plain;
  int64_t n, count;

  // Rows [m, m + X) of y in these columns.
  template <int X, int W>
  void multiply(int64_t m) const {
    double sums[X][W];
    const int64_t stride = laid_out_size(shape.k), whole = shape.k_padded() / kChunk;
    const float* x = rows.laid_out + m * stride;
    // A float32 result shows the last bits of its sum, which depend on the order of the terms, and
    // one of them flips codes of the layers to come; double has room for the sum itself.
    if (rows.y_type == Float::kF32) {
      dots<X, W, Doubles>(x, stride, weight, whole, chunks_of(shape.k), sums);
    } else {
      dots<X, W, Floats>(x, stride, weight, whole, chunks_of(shape.k), sums);
    }
    for (int i = 0; i < X; ++i) {
      for (int w = 0; w < W; ++w) write(m + i, w, sums[i][w]);
    }
  }

  void write(int64_t m, int w, double sum) const {
    double value;
    if (rows.exponents[m] == kWideRow || exponents[w] == kWideRow) {
      const XRow x = {rows.codes + m * shape.k, rows.scales + m * shape.x_blocks()};
      const int64_t blocks = shape.weight_blocks();
      value =
          exact_dot(x, plain.codes + (n + w) * 16 * blocks, plain.scales + (n + w) * blocks, shape);
    } else {
      value = sum * power_of_two_double((int64_t)rows.exponents[m] + exponents[w]);
    }
    JAX_W4A8_ISA::write(rows.y, rows.y_type, m * shape.n + n + w, value);
  }

  template <int X>
  void multiply_rows(int64_t m) const {
    if (count == kWeightRows) {
      multiply<X, kWeightRows>(m);
    } else {
      multiply<X, 1>(m);
    }
  }

  // As many rows as are left, at most X.
  template <int X>
  void multiply_rest(int64_t m) const {
    if constexpr (X > 0) {
      if (rows.count - m == X) {
        multiply_rows<X>(m);
      } else {
        multiply_rest<X - 1>(m);
      }
    }
  }
};

void multiply(const Rows& rows, Weight weight, const Shape& shape, int64_t n_begin, int64_t n_end) {
  const int64_t blocks = shape.weight_blocks(), chunks = chunks_of(shape.k);
  const int64_t whole = shape.k_padded() / kChunk, rest = shape.k_padded() % kChunk / 2;
  float* factors = new float[kWeightRows * chunks * kLanes];
  Columns columns = {rows, shape, {}, {}, weight, 0, 0};
  for (int64_t n = n_begin; n < n_end; n += kWeightRows) {
    columns.n = n;
    columns.count = n_end - n < kWeightRows ? 1 : kWeightRows;
    for (int64_t w = 0; w < columns.count; ++w) {
      WeightRow& row = columns.weight[w];
      float* row_factors = factors + w * chunks * kLanes;
      row.codes = weight.codes + (n + w) * 16 * blocks;
      row.factors = row_factors;
      __builtin_memcpy(row.tail, row.codes + whole * kChunkBytes, rest);
      columns.exponents[w] =
          scale_factors(weight.scales + (n + w) * blocks, row.codes, blocks, chunks, row_factors);
    }
    int64_t m = 0;
    for (; m + kXRows <= rows.count; m += kXRows) columns.multiply_rows<kXRows>(m);
    columns.multiply_rest<kXRows - 1>(m);
  }
  delete[] factors;
}

const Kernels kKernels = {JAX_W4A8_NAME_OF(JAX_W4A8_ISA), laid_out_size, quantize_row, lay_out_row,
                          multiply};

}  // namespace JAX_W4A8_ISA
}  // namespace

const Kernels& JAX_W4A8_FUNCTION_OF(JAX_W4A8_ISA)() { return JAX_W4A8_ISA::kKernels; }

}  // namespace jax_w4a8::host
