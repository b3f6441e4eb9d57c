// Elements of a flat tensor in runs at equal distances: what a slice of columns is in a row-major matrix.
#pragma once

#include <algorithm>
#include <cstdint>

namespace quartet {

// Elements [begin + i * stride, begin + i * stride + count) for i in [0, rows), in this order. stride >= count where
// there are several rows; nothing otherwise.
struct StridedRange {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t rows = 1;
  int64_t stride = 0;

  int64_t numel() const { return rows * count; }
  bool operator==(const StridedRange&) const = default;
};

// How many of the range's elements lie before `position` of the tensor.
inline int64_t ElementsBefore(const StridedRange& range, int64_t position) {
  if (position <= range.begin || range.count == 0) return 0;
  if (range.rows == 1) return std::min(position - range.begin, range.count);
  const int64_t row = std::min((position - range.begin) / range.stride, range.rows - 1);
  return row * range.count + std::min(position - range.begin - row * range.stride, range.count);
}

// What comes first of the range behind its first `done` elements: as much as is a range again, and at most `most`
// elements (at least 1). `done` is less than numel().
inline StridedRange NextPart(const StridedRange& range, int64_t done, int64_t most) {
  const int64_t row = done / range.count, within = done % range.count;
  const int64_t begin = range.begin + row * range.stride + within;
  if (within > 0 || most < 2 * range.count || row + 1 == range.rows) {
    return {.begin = begin, .count = std::min(most, range.count - within), .rows = 1, .stride = 0};
  }
  const int64_t rows = std::min(most / range.count, range.rows - row);
  return {.begin = begin, .count = range.count, .rows = rows, .stride = range.stride};
}

}  // namespace quartet
