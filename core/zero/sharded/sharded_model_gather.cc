// Groups of parameters brought together from the ranks that hold them, and given back.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/memory/accounted_tensor.h"
#include "core/zero/sharded/sharded_model_impl.h"

namespace quartet {
namespace {

// Between types and devices LibTorch converts into memory as large as the whole, which nothing counts: so in parts.
void CopyConverted(const at::Tensor& to, const at::Tensor& from) {
  constexpr int64_t kAtOnce = int64_t{4} << 20;
  if (to.device() == from.device() || to.scalar_type() == from.scalar_type()) {
    to.copy_(from);
    return;
  }
  for (int64_t done = 0; done < from.numel(); done += kAtOnce) {
    const int64_t count = std::min(kAtOnce, from.numel() - done);
    to.narrow(0, done, count).copy_(from.narrow(0, done, count));
  }
}

}  // namespace

GatheredGroup::State::~State() {
  tensors.clear();
  if (buffer.defined()) FreeStorage(buffer);
}

GatheredGroup::GatheredGroup(std::unique_ptr<State> state) : state_(std::move(state)) {}
GatheredGroup::GatheredGroup(GatheredGroup&&) noexcept = default;
GatheredGroup& GatheredGroup::operator=(GatheredGroup&&) noexcept = default;
GatheredGroup::~GatheredGroup() = default;
const std::vector<at::Tensor>& GatheredGroup::tensors() const { return state_->tensors; }

at::Tensor ShardedModel::Impl::Zeros(MemoryTier tier, MemoryCategory category, int64_t numel,
                                     at::ScalarType dtype) const {
  return AccountedZeros(ledger, category, numel, dtype, options.device, tier);
}

at::Tensor ShardedModel::Impl::OwnShard(int group, const at::Tensor& buffer) const {
  return buffer.narrow(0, shard->rank() * flat[group].shard, flat[group].shard);
}

std::vector<at::Tensor> ShardedModel::Impl::Views(int group, const at::Tensor& buffer) const {
  std::vector<at::Tensor> views;
  const auto& parameters = layout.groups[group].parameters;
  for (size_t p = 0; p < parameters.size(); ++p) {
    views.push_back(buffer.narrow(0, flat[group].offsets[p], parameters[p].numel()).view(parameters[p].shape));
  }
  return views;
}

void ShardedModel::Impl::StartGather(int group) {
  if (!gathers()) return;
  at::NoGradGuard no_grad;
  Pending gather;
  gather.group = group;
  if (groups[group].refill.defined()) {
    gather.is_refill = true;
    gather.buffer = std::exchange(groups[group].refill, at::Tensor());
    RefillStorage(ledger, MemoryCategory::kGathered, gather.buffer);
  } else {
    gather.buffer =
        AccountedEmpty(ledger, MemoryCategory::kGathered, flat[group].total, options.compute_dtype, options.device);
  }
  try {
    const MemoryScope communication(ledger, MemoryCategory::kCommunication);
    // From host memory without waiting: it changes only in an optimizer step, which waits for the device.
    OwnShard(group, gather.buffer).copy_(groups[group].compute, /*non_blocking=*/true);
    gather.work = shard->AllGatherInPlace(gather.buffer);
  } catch (...) {
    FreeStorage(gather.buffer);
    throw;
  }
  pending = std::move(gather);
}

void ShardedModel::Impl::DropPending() noexcept {
  if (!pending.has_value()) return;
  try {
    pending->work->Wait();
  } catch (const std::exception&) {
    // The error that brought us here has the same cause and is on its way up already.
  }
  FreeStorage(pending->buffer);
  if (pending->is_refill) groups[pending->group].refill = pending->buffer;  // a graph refers to it still
  pending.reset();
}

GatheredGroup ShardedModel::Impl::Gather(int group, int prefetch) {
  auto state = std::make_unique<GatheredGroup::State>();
  if (!gathers()) {
    state->tensors = Views(group, groups[group].compute);
    return GatheredGroup(std::move(state));
  }
  if (pending.has_value() && pending->group != group) DropPending();
  if (!pending.has_value()) StartGather(group);
  state->buffer = pending->buffer;  // from here on freed with `state`
  std::unique_ptr<CollectiveWork> work = std::move(pending->work);
  pending.reset();
  work->Wait();
  at::NoGradGuard no_grad;
  state->tensors = Views(group, state->buffer);
  if (prefetch >= 0) StartGather(prefetch);
  return GatheredGroup(std::move(state));
}

GatheredGroup ShardedModel::Impl::GatherCopy(int group, const at::Tensor& part) {
  at::NoGradGuard no_grad;
  auto state = std::make_unique<GatheredGroup::State>();
  state->buffer =
      AccountedEmpty(ledger, MemoryCategory::kGathered, flat[group].total, options.compute_dtype, options.device);
  OwnShard(group, state->buffer).copy_(part);
  shard->AllGatherInPlace(state->buffer)->Wait();
  state->tensors = Views(group, state->buffer);
  return GatheredGroup(std::move(state));
}

void ShardedModel::Impl::RefreshComputeWeights(int group) {
  at::NoGradGuard no_grad;
  const ShardedGroup& weights = groups[group];
  switch (compute_weights) {
    case ComputeWeights::kGatheredFromShards:
      return;
    case ComputeWeights::kGatheredFromCopies:
      CopyConverted(weights.compute, weights.shard);
      return;
    case ComputeWeights::kWholeCopy:
      CopyConverted(OwnShard(group, weights.compute), weights.shard);
      [[fallthrough]];
    case ComputeWeights::kWhole:
      if (shard->size() > 1) shard->AllGatherInPlace(weights.compute)->Wait();
  }
}

}  // namespace quartet
