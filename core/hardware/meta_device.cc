#include "core/hardware/meta_device.h"

#include <ATen/ops/zeros.h>

#include <utility>

namespace quartet {
namespace {

thread_local at::DeviceType meta_stands_for = at::kCPU;

}  // namespace

double ScalarValue(const at::Tensor& scalar) { return scalar.is_meta() ? 0 : scalar.item<double>(); }

at::Tensor HostValues(const at::Tensor& tensor) {
  if (tensor.is_meta()) return at::zeros(tensor.sizes(), tensor.options().device(at::kCPU));
  return tensor.cpu();
}

MetaStandsFor::MetaStandsFor(at::DeviceType device) : before_(std::exchange(meta_stands_for, device)) {}
MetaStandsFor::~MetaStandsFor() { meta_stands_for = before_; }

at::DeviceType ComputeDevice(at::Device device) { return device.is_meta() ? meta_stands_for : device.type(); }
at::DeviceType ComputeDevice(const at::Tensor& tensor) { return ComputeDevice(tensor.device()); }

}  // namespace quartet
