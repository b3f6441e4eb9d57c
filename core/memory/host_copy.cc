#include "core/memory/host_copy.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace quartet {
namespace {

c10::Stream PresentStream(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

}  // namespace

void HostCopy::Order() {
  if (done_ != nullptr) done_->block(PresentStream(done_->device()));
}

void HostCopy::Wait() {
  if (done_ != nullptr) done_->synchronize();
}

HostCopyStream::HostCopyStream(at::Device device) : device_(device) {
  if (device.is_cuda()) stream_ = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
}

HostCopy HostCopyStream::Start(const at::Tensor& to, const at::Tensor& from) {
  const at::NoGradGuard no_grad;
  HostCopy copy;
  if (!stream_.has_value()) {
    to.copy_(from);
    return copy;
  }
  c10::Event before(device_.type());
  before.record(PresentStream(device_));
  before.block(*stream_);
  {
    const c10::StreamGuard guard(*stream_);
    to.copy_(from, /*non_blocking=*/true);
  }
  copy.done_ = std::make_unique<c10::Event>(device_.type());
  copy.done_->record(*stream_);
  return copy;
}

}  // namespace quartet
