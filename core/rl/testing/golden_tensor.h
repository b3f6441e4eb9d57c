// Golden arrays as tensors, for tests.
#pragma once

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <type_traits>
#include <vector>

namespace quartet {

// What typed tests of golden arrays compute in.
using GoldenPrecisions = testing::Types<double, float>;

template <typename T>
at::Tensor GoldenTensor(const std::vector<double>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kDouble))
      .to(std::is_same_v<T, double> ? at::kDouble : at::kFloat);
}

}  // namespace quartet
