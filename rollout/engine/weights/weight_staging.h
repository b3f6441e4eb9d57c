// New weights of a rank, beside those that it computes with. LibTorch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/strided_range.h"

namespace quartet {

// Elements of what is stored as tensor `tensor` (an index into RolloutEngine::tensors()), row-major, that this rank
// keeps; `data` holds them one behind the other in the resident type (null on the meta device).
struct StagedRange {
  int32_t tensor;
  StridedRange elements;
  void* data;
};

// A second set of this rank's weights, to be filled from any thread and then committed.
class WeightStaging {
 public:
  virtual ~WeightStaging() = default;
  virtual const std::vector<StagedRange>& ranges() const = 0;
  // To be called once the ranges are filled: puts them in the order in which they are computed with, while the engine
  // goes on generating. They must not be read or written after it.
  virtual void Prepare() = 0;
};

}  // namespace quartet
