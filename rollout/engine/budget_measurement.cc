#include "rollout/engine/budget_measurement.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "core/base/division.h"
#include "core/hardware/device.h"
#include "core/memory/accounted_tensor.h"
#include "core/memory/catch_exceptions.h"

namespace quartet {
namespace {

// As many tokens as a forward may have, of as many sequences as may run, each at the end of the longest context. All
// lie in the cache's first block: only the memory matters.
void MakeLargestForward(const RolloutConfig& options, ForwardPass* forward) {
  const int64_t length = options.max_model_len();
  const int64_t count = std::min(options.max_num_seqs(), options.max_num_batched_tokens());
  int64_t tokens = std::min<int64_t>(options.max_num_batched_tokens(), count * length);
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<ScheduledChunk> chunks;
  for (int64_t i = 0; i < count; ++i) {
    Sequence& sequence = *sequences.emplace_back(std::make_unique<Sequence>());
    sequence.ids = TokenIds(std::vector<int32_t>(length));
    sequence.blocks.assign(CeilDivide(length, options.block_size()), 0);
    const int64_t part = std::min(length, tokens - (count - 1 - i));  // each of the others has one at least
    chunks.push_back({&sequence, length - part, part, /*last=*/true});
    tokens -= part;
  }
  forward->Run(chunks, {}, nullptr);
}

}  // namespace

absl::StatusOr<CacheBudget> MeasureCacheBudget(const RolloutConfig& options, const PlannedDevice& planned,
                                               const KvCacheShape& shape, int64_t least_blocks, at::Device device,
                                               ForwardPass* forward, Ledger* ledger) {
  CacheBudget budget;
  budget.utilization = options.gpu_memory_utilization();
  budget.least_cache_bytes = (least_blocks + forward->spare_blocks()) * shape.block_bytes();
  const int64_t present_bytes = (1 + forward->spare_blocks()) * shape.block_bytes();
  const absl::Status status = CatchExceptions("the largest forward", *ledger, [&] {
    if (device.is_meta()) {
      ledger->ResetPeaks();
      budget.weights_bytes = ledger->total(MemoryTier::kDevice);
      forward->TakeCache(shape, 1);
      MakeLargestForward(options, forward);
      const int64_t peak = ledger->peak_total(MemoryTier::kDevice), left = ledger->total(MemoryTier::kDevice);
      forward->Record();
      budget.graphs_bytes = ledger->total(MemoryTier::kDevice) - left;
      budget.forward_bytes = peak - budget.weights_bytes - present_bytes;
      budget.device_bytes = planned.bytes;
      budget.other_bytes = planned.other_bytes;
      forward->DropCache();
      return absl::OkStatus();
    }
    ResetPeakTensors(device);
    budget.weights_bytes = ReadDeviceMemory(device).tensors;
    forward->TakeCache(shape, 1);
    MakeLargestForward(options, forward);
    GiveBackFreedBlocks();
    const DeviceMemory before = ReadDeviceMemory(device);
    forward->Record();
    GiveBackFreedBlocks();
    const DeviceMemory after = ReadDeviceMemory(device);
    // Graphs take memory of the driver's, too.
    budget.graphs_bytes = after.reserved - before.reserved + std::max<int64_t>(0, after.others - before.others);
    budget.forward_bytes = before.peak_tensors - budget.weights_bytes - present_bytes;
    budget.device_bytes = before.total;
    budget.other_bytes = before.others;
    forward->DropCache();
    GiveBackFreedBlocks();
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return budget;
}

}  // namespace quartet
