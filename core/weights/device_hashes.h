// Hashes of tensors by the GPU that has them (core/weights/tensor_hash.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace quartet {

// One thread.
class DeviceHashes {
 public:
  // Of `tensors` tensors, of which nothing has been added. `device` is a CUDA device.
  DeviceHashes(int tensors, at::Device device);
  // `values`, contiguous, on the device: elements [first_position, first_position + numel) of a tensor. Starts the
  // work, and what writes to them afterwards comes after it. Throws LibTorch's errors.
  void Add(int tensor, int64_t first_position, const at::Tensor& values);
  // As HashElements has them, once the device has added all.
  std::vector<uint64_t> Wait() const;

 private:
  at::Tensor sums_;  // [tensors], of 64 bits
};

}  // namespace quartet
