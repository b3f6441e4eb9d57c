// Ranges of a tensor as they are on the wire (proto/weights.proto).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/model/strided_range.h"
#include "proto/weights.pb.h"

namespace quartet {

// As sent: nothing is checked.
inline StridedRange ElementsOf(const TensorRange& range) {
  const int64_t rows = std::max<int64_t>(1, range.rows());
  return {.begin = range.begin(), .count = range.count(), .rows = rows, .stride = rows == 1 ? 0 : range.stride()};
}

inline TensorRange MakeTensorRange(int32_t tensor, const StridedRange& elements) {
  TensorRange range;
  range.set_tensor(tensor);
  range.set_begin(elements.begin);
  range.set_count(elements.count);
  if (elements.rows > 1) {
    range.set_rows(elements.rows);
    range.set_stride(elements.stride);
  }
  return range;
}

}  // namespace quartet
