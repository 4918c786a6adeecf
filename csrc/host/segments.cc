#include "csrc/host/segments.h"

#include <algorithm>

namespace jax_w4a8::host {

std::vector<Segment> grouped_segments(const int32_t* sizes, int64_t groups, int64_t m) {
  std::vector<Segment> segments;
  int64_t begin = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t rows = std::clamp<int64_t>(sizes[group], 0, m - begin);
    if (rows > 0) segments.push_back({group, begin, begin + rows});
    begin += rows;
  }
  return segments;
}

std::vector<Segment> masked_segments(const int32_t* counts, int64_t groups, int64_t m) {
  std::vector<Segment> segments;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t rows = std::clamp<int64_t>(counts[group], 0, m);
    if (rows > 0) segments.push_back({group, group * m, group * m + rows});
  }
  return segments;
}

std::vector<Segment> split(const std::vector<Segment>& segments, int64_t rows) {
  std::vector<Segment> pieces;
  for (const Segment& segment : segments) {
    for (int64_t begin = segment.begin; begin < segment.end; begin += rows) {
      pieces.push_back({segment.group, begin, std::min(begin + rows, segment.end)});
    }
  }
  return pieces;
}

}  // namespace jax_w4a8::host
