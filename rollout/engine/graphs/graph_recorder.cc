#include "rollout/engine/graphs/graph_recorder.h"

#include <algorithm>
#include <utility>

#include "core/hardware/meta_device.h"
#include "core/memory/accounted_tensor.h"
#include "core/memory/ledger.h"
#include "rollout/engine/graphs/cuda_graph_recorder.h"

namespace quartet {
namespace {

// What forwards allocate is in the pool, which is counted once.
at::Tensor RunUncounted(const std::function<at::Tensor()>& forward, int64_t* peak_bytes) {
  Ledger ledger;
  const MemoryScope scope(&ledger, MemoryCategory::kActivations);
  at::Tensor result = forward();
  *peak_bytes = ledger.peak_total(MemoryTier::kDevice);
  return result;
}

class PlannedForward : public RecordedForward {
 public:
  explicit PlannedForward(std::function<at::Tensor()> forward) : forward_(std::move(forward)) {}
  at::Tensor Replay() override {
    int64_t in_pool;
    return RunUncounted(forward_, &in_pool);
  }

 private:
  const std::function<at::Tensor()> forward_;
};

class PlannedRecorder : public GraphRecorder {
 public:
  std::unique_ptr<RecordedForward> Record(const std::function<at::Tensor()>& forward) override {
    // Later ones take no more than the first.
    if (pool_bytes_ == 0) RunUncounted(forward, &pool_bytes_);
    return std::make_unique<PlannedForward>(forward);
  }
  int64_t pool_bytes() const override { return pool_bytes_; }

 private:
  int64_t pool_bytes_ = 0;
};

}  // namespace

NewGraphRecorder GraphRecordersFor(at::Device device) {
  if (ComputeDevice(device) != at::kCUDA) return nullptr;
  if (device.is_meta()) return [] { return std::make_unique<PlannedRecorder>(); };
  return [device] { return NewCudaGraphRecorder(device); };
}

}  // namespace quartet
