// The shapes of tile that the kernel is compiled for, and where things lie in shared memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/sm90/layout.h"

namespace jax_w4a8::sm90 {

constexpr int kWarpgroup = 128;
constexpr int kMetaWarps = 3;  // of the producer warpgroup; its first warp issues the copies

// kTokens columns by kRowTiles * 64 rows. kSlices warpgroups share the K of each row tile, taking
// the units of a stage in turn. kFine promotes every 32 of K, for activation blocks of 32.
template <int kTokens_, int kRowTiles_, int kSlices_, bool kFine_>
struct Config {
  static constexpr int kTokens = kTokens_;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kSlices = kSlices_;
  static constexpr bool kFine = kFine_;

  static constexpr int kConsumers = kRowTiles * kSlices;
  static constexpr int kConsumerThreads = kConsumers * kWarpgroup;
  static constexpr int kThreads = kConsumerThreads + kWarpgroup;
  // Whether the next unit is expanded while this one is multiplied: it takes 16 registers more.
  static constexpr bool kAhead = !kFine && (kSlices <= 2 || kTokens <= 32);
  static constexpr int kProducerRegisters = kConsumers == 4 ? 56 : 72;
  static constexpr int kConsumerRegisters = kConsumers == 4 ? 104 : 216;

  // Within a stage.
  static constexpr int kSubBlocks = kFine ? kUnitGroups : 1;
  static constexpr int kTokenBytes = kTokens * kUnitK;
  // A thread's tokens are contiguous; four floats of padding spread its four columns over banks.
  static constexpr int kColumnStride = kTokens / 4 + 4;
  static constexpr int kScaleStride = 4 * kColumnStride;
  static constexpr int kUnitsAt = kSlices * kTokenBytes;
  static constexpr int kScalesAt = kUnitsAt + kConsumers * kUnitBytes;
  static constexpr int kTopsAt = kScalesAt + kSlices * kSubBlocks * kScaleStride * 4;
  static constexpr int kInfoAt = kTopsAt + kRowTiles * kUnitRows;
  static constexpr int kStageBytes = (kInfoAt + 64 + 1023) / 1024 * 1024;

  // Partial sums of a split K; the exact path's tokens lie there too.
  static constexpr int kWarpTiles = 4 * kRowTiles;  // 16 rows each
  static constexpr int kPartialBytes = kConsumers * kTokens * 64 * 4;
  static constexpr int kExactTokens = 16;
  static constexpr int kExactBytes = kConsumers * kExactTokens * kUnitK;
  static constexpr int kReduceBytes = kPartialBytes > kExactBytes ? kPartialBytes : kExactBytes;

  static constexpr int kMaxStages = 16;
  static constexpr int kMaxSplit = 8;
  // Two barriers a stage and one for the reduction, then the sources' warnings.
  static constexpr int kBarrierBytes = (2 * kMaxStages + 1) * 8 + 8;
  static constexpr int kWarningBytes = kMaxSplit * kSlices * kWarpTiles * 4;
  static constexpr int kFixedBytes = kReduceBytes + kBarrierBytes + kWarningBytes;
  static constexpr int group_bytes(int groups) { return (3 * groups + 1) * 4; }
};

}  // namespace jax_w4a8::sm90
