// Engines on LibTorch's meta device, where tensors have shapes and no data: a plan runs the same code as a real rank
// does, and what would be read from a tensor reads as zero.
#pragma once

#include <ATen/core/Tensor.h>

namespace quartet {

// The one element of `scalar`; 0 where it has no data.
double ScalarValue(const at::Tensor& scalar);

// `tensor` on the CPU, itself if it is there already; zeros where it has no data.
at::Tensor HostValues(const at::Tensor& tensor);

// While it lives, meta tensors of this thread stand for tensors of `device`: code that computes in another way, and so
// takes other memory, on each kind of device asks ComputeDevice. Without one they stand for the CPU.
class MetaStandsFor {
 public:
  explicit MetaStandsFor(at::DeviceType device);
  MetaStandsFor(const MetaStandsFor&) = delete;
  MetaStandsFor& operator=(const MetaStandsFor&) = delete;
  ~MetaStandsFor();

 private:
  const at::DeviceType before_;
};

// `device`, that of `tensor`, or the one that it stands for.
at::DeviceType ComputeDevice(at::Device device);
at::DeviceType ComputeDevice(const at::Tensor& tensor);

}  // namespace quartet
