// The rows of x that meet the same group's weight.

#ifndef JAX_W4A8_CSRC_HOST_SEGMENTS_H_
#define JAX_W4A8_CSRC_HOST_SEGMENTS_H_

#include <cstdint>
#include <vector>

namespace jax_w4a8::host {

struct Segment {
  int64_t group;
  int64_t begin;  // rows of x, all groups' laid end to end
  int64_t end;
};

// Consecutive groups of x [m, k]. Negative sizes count as zero; groups are cut where the rows end.
std::vector<Segment> grouped_segments(const int32_t* sizes, int64_t groups, int64_t m);

// The first counts[e] of the m rows of each group e of x [groups, m, k].
std::vector<Segment> masked_segments(const int32_t* counts, int64_t groups, int64_t m);

// The same rows in segments of at most `rows`.
std::vector<Segment> split(const std::vector<Segment>& segments, int64_t rows);

}  // namespace jax_w4a8::host

#endif  // JAX_W4A8_CSRC_HOST_SEGMENTS_H_
