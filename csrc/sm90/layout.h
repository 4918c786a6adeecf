// The packed weight: what pack() in jax_w4a8/backends/sm90.py writes and the kernels read.
//
// A unit holds 64 output rows by 128 of K: 4096 bytes of E2M1 codes in the order in which the
// threads of a warpgroup need them, then one exponent byte for each row and group of 32. Units
// follow each other along K, so a bulk copy brings as many as a pipeline stage takes.
#pragma once

#include <cstdint>

namespace jax_w4a8::sm90 {

constexpr int kUnitRows = 64;
constexpr int kUnitK = 128;
constexpr int kGroupK = 32;
constexpr int kUnitGroups = kUnitK / kGroupK;
constexpr int kCodeBytes = kUnitRows * kUnitK / 2;
constexpr int kExponentBytes = kUnitRows * kUnitGroups;
constexpr int kUnitBytes = kCodeBytes + kExponentBytes;

// How a row tile keeps its group exponents.
enum TileKind : uint8_t {
  kFolded = 0,  // as an index 0..14 below the row's largest: the table with that exponent is exact
  kKept = 1,    // as UE8M0 bytes, because a row spreads over more than 15 binades or holds a NaN
};

// Index 14 stands for the row's largest exponent, and means E2M1 * 2^6.
constexpr int kTopIndex = 14;
constexpr int kTopShift = 6;
// Set beside the indices 0..2, whose tables hold subnormals and are not the others shifted.
constexpr uint32_t kSubnormalMark = 0x80;

}  // namespace jax_w4a8::sm90
