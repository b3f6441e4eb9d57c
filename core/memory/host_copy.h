// Copies between the device's memory and host memory beside the device's computation. On the CPU, where both are the
// same memory, a copy is done when it has been started.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>

namespace quartet {

// A copy under way. Its tensors must live until it is done.
class HostCopy {
 public:
  HostCopy() = default;
  // What is given to the device from now on comes after the copy.
  void Order();
  // Returns when the copy is done.
  void Wait();

 private:
  friend class HostCopyStream;
  std::unique_ptr<c10::Event> done_;  // null: done already
};

// A stream of its own for copies in one direction. One thread.
class HostCopyStream {
 public:
  explicit HostCopyStream(at::Device device);
  // After all that the device has been given so far, on its present stream and on this one.
  HostCopy Start(const at::Tensor& to, const at::Tensor& from);

 private:
  at::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace quartet
