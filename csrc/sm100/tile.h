// The shapes of tile that there are kernels for: plain C++, free of CUDA.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace jax_w4a8::sm100 {

// Which operand of the MMA the activations are. With few of them the weight comes first: the MMA's
// M, always 128, then runs along N of the product, and its N may be as small as 64.
enum class Order { kActivationsFirst, kWeightsFirst };

// The part of y that one MMA instruction covers, in the MMA's terms: its M is 128 for each SM that
// takes part.
struct Tile {
  std::string_view name;
  int mma_m;
  int mma_n;
  Order order;
  bool grouped;

  constexpr bool operator==(const Tile& other) const { return name == other.name; }

  constexpr int sms() const { return mma_m / 128; }
  // Rows and columns of y in one tile.
  constexpr int rows() const { return order == Order::kWeightsFirst ? mma_n : mma_m; }
  constexpr int columns() const { return order == Order::kWeightsFirst ? mma_m : mma_n; }
};

inline constexpr Tile kDense128x128 = {"dense_128x128", 128, 128, Order::kActivationsFirst, false};
inline constexpr Tile kDense128x256 = {"dense_128x256", 128, 256, Order::kActivationsFirst, false};
inline constexpr Tile kDense256x256 = {"dense_256x256", 256, 256, Order::kActivationsFirst, false};
inline constexpr Tile kDenseSwap128x64 = {"dense_swap_128x64", 128, 64, Order::kWeightsFirst,
                                          false};
inline constexpr Tile kDenseSwap128x128 = {"dense_swap_128x128", 128, 128, Order::kWeightsFirst,
                                           false};
inline constexpr Tile kGrouped128x128 = {"grouped_128x128", 128, 128, Order::kActivationsFirst,
                                         true};
inline constexpr Tile kGroupedSwap128x64 = {"grouped_swap_128x64", 128, 64, Order::kWeightsFirst,
                                            true};

inline constexpr std::array kTiles = {
    kDense128x128,     kDense128x256,   kDense256x256,      kDenseSwap128x64,
    kDenseSwap128x128, kGrouped128x128, kGroupedSwap128x64,
};

// What a product asks of its tiles. In a grouped or masked one `m` is the rows of each group, as
// far as the host knows: their average, or the most that there may be.
struct Extent {
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t groups;  // 1 when dense
  bool grouped;
};

// The tile whose kernel is expected to be the fastest on `sm_count` SMs.
const Tile& choose_tile(const Extent& extent, int sm_count);

// The time that this expects, in clocks of an SM: docs/sm100.md explains the model.
int64_t expected_clocks(const Tile& tile, const Extent& extent, int sm_count);

}  // namespace jax_w4a8::sm100
