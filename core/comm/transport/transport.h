// How the bytes of a process group travel, for process_group.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/comm/store/key_value_store.h"
#include "core/comm/transport/collective_work.h"
#include "core/comm/transport/process_group_options.h"
#include "core/comm/transport/process_identity.h"

namespace quartet {

class TransportWork : public CollectiveWork {
 public:
  // When it was finished, by the trace's clock; 0: not known before Wait.
  virtual int64_t finished() const { return 0; }
};

// As ProcessGroup is used: one thread at a time, the same calls in the same order on all ranks. Buffers are flat,
// contiguous and of a multiple of `size` elements. `number` counts the collectives from 1. Failures are exceptions,
// here and in Wait, whose text is the cause alone: which collective of which group failed, and through whom, is the
// caller's to say.
class Transport {
 public:
  virtual ~Transport() = default;
  // Where the tensors of collectives are.
  virtual at::Device device() const = 0;
  virtual std::unique_ptr<TransportWork> AllGatherInPlace(int64_t number, const at::Tensor& buffer) = 0;
  virtual std::unique_ptr<TransportWork> ReduceScatterSum(int64_t number, const at::Tensor& output,
                                                          const at::Tensor& input) = 0;
  virtual std::unique_ptr<TransportWork> AllReduce(int64_t number, const at::Tensor& tensor, bool max) = 0;
  // From any thread: collectives from `first_number` on cannot succeed; those under way end soon with an exception, and
  // so do later ones.
  virtual void Abort(int64_t first_number) = 0;
};

// Finished already.
class DoneWork : public TransportWork {
 public:
  void Wait() override {}
};

// With one rank a collective is a copy at most.
class LoneTransport : public Transport {
 public:
  at::Device device() const override { return at::kCPU; }
  std::unique_ptr<TransportWork> AllGatherInPlace(int64_t, const at::Tensor&) override {
    return std::make_unique<DoneWork>();
  }
  std::unique_ptr<TransportWork> ReduceScatterSum(int64_t, const at::Tensor& output, const at::Tensor& input) override {
    output.copy_(input);
    return std::make_unique<DoneWork>();
  }
  std::unique_ptr<TransportWork> AllReduce(int64_t, const at::Tensor&, bool) override {
    return std::make_unique<DoneWork>();
  }
  void Abort(int64_t) override {}
};

// All may throw what LibTorch throws.
absl::StatusOr<std::unique_ptr<Transport>> MakeGlooTransport(KeyValueStore* store, const ProcessGroupOptions& options);
// For ranks on one host; `processes` are all of theirs. UNAVAILABLE or FAILED_PRECONDITION, alike on all ranks, where
// they cannot share memory.
absl::StatusOr<std::unique_ptr<Transport>> MakeSharedMemoryTransport(KeyValueStore* store,
                                                                     const ProcessGroupOptions& options,
                                                                     const std::vector<ProcessIdentity>& processes);
// FAILED_PRECONDITION in builds without --config=cuda.
absl::StatusOr<std::unique_ptr<Transport>> MakeNcclTransport(KeyValueStore* store, const ProcessGroupOptions& options);
// Moves nothing. Takes what memory that can be accounted the backend of `options` ("gloo"; the others none) would take.
std::unique_ptr<Transport> MakeDryTransport(const ProcessGroupOptions& options);

}  // namespace quartet
