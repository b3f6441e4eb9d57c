// How the bytes of a process group travel, for process_group.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "absl/status/statusor.h"
#include "core/comm/process_group.h"

namespace quartet {

// As ProcessGroup is used: one thread at a time, the same calls in the same order on all ranks. Buffers are flat,
// contiguous and of a multiple of `size` elements. Failures are exceptions, here and in Wait, whose text is the cause
// alone: which collective of which group failed is the caller's to say.
class Transport {
 public:
  virtual ~Transport() = default;
  // Where the tensors of collectives are.
  virtual at::Device device() const = 0;
  virtual std::unique_ptr<CollectiveWork> AllGatherInPlace(const at::Tensor& buffer) = 0;
  virtual std::unique_ptr<CollectiveWork> ReduceScatterSum(const at::Tensor& output, const at::Tensor& input) = 0;
  virtual std::unique_ptr<CollectiveWork> AllReduce(const at::Tensor& tensor, bool max) = 0;
};

// Finished already.
class DoneWork : public CollectiveWork {
 public:
  void Wait() override {}
};

// All may throw what LibTorch throws.
absl::StatusOr<std::unique_ptr<Transport>> MakeGlooTransport(KeyValueStore* store, const ProcessGroupOptions& options);
// FAILED_PRECONDITION in builds without --config=cuda.
absl::StatusOr<std::unique_ptr<Transport>> MakeNcclTransport(KeyValueStore* store, const ProcessGroupOptions& options);
// Moves nothing.
std::unique_ptr<Transport> MakeDryTransport();

}  // namespace quartet
