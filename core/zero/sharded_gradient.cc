#include "core/zero/sharded_gradient.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <exception>
#include <utility>

#include "core/hardware/meta_device.h"
#include "core/memory/accounted_tensor.h"

namespace quartet {
namespace {

// Of a flat buffer, one parameter's elements in its shape.
at::Tensor View(const at::Tensor& flat, const FlatGroup& layout, const ParameterGroup& group, size_t parameter) {
  const ParameterSpec& spec = group.parameters[parameter];
  return flat.narrow(0, layout.offsets[parameter], spec.numel()).view(spec.shape);
}

}  // namespace

ShardedGradient::ShardedGradient(ShardedModel::Impl* model, bool no_sync, bool released)
    : model_(model), no_sync_(no_sync), to_host_(model->options.device) {
  open_.resize(model->flat.size());
  if (!released) Allocate();
}

void ShardedGradient::Allocate() {
  if (!parts_.empty()) return;
  const at::NoGradGuard no_grad;
  const bool in_host = model_->shard_tier() == MemoryTier::kHost;
  const bool parts_are_whole = model_->shard->size() == 1 && !in_host;
  const auto zeros = [this](MemoryTier tier, int64_t numel) {
    return model_->Zeros(tier, MemoryCategory::kGradients, numel, model_->state_dtype());
  };
  for (const FlatGroup& flat : model_->flat) {
    parts_.push_back(zeros(model_->shard_tier(), flat.shard));
    if (parts_are_whole) {
      whole_.push_back(parts_.back());
    } else if (no_sync_) {
      whole_.push_back(zeros(MemoryTier::kDevice, flat.total));
    }
  }
}

void ShardedGradient::Release() {
  parts_.clear();
  whole_.clear();
}

void ShardedGradient::Add(int group, const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  const FlatGroup& layout = model_->flat[group];
  const ParameterGroup& parameters = model_->layout.groups[group];
  if (adds_up_whole() || open_[group].defined()) {
    const at::Tensor& sum = adds_up_whole() ? whole_[group] : open_[group];
    for (size_t p = 0; p < gradients.size(); ++p) {
      if (gradients[p].defined()) View(sum, layout, parameters, p).add_(gradients[p]);
    }
    return;
  }
  // Written once: what no gradient covers, padding too, is made zero, the rest copied.
  const at::Tensor flat = AccountedEmpty(model_->ledger, MemoryCategory::kCommunication, layout.total,
                                         model_->state_dtype(), model_->options.device);
  int64_t end = 0;
  for (size_t p = 0; p < gradients.size(); ++p) {
    if (!gradients[p].defined()) continue;
    const int64_t begin = layout.offsets[p];
    flat.narrow(0, end, begin - end).zero_();
    View(flat, layout, parameters, p).copy_(gradients[p]);
    end = begin + parameters.parameters[p].numel();
  }
  flat.narrow(0, end, layout.total - end).zero_();
  open_[group] = flat;
}

void ShardedGradient::AddRows(int group, int parameter, const at::Tensor& ids_T, const at::Tensor& rows_TD) {
  const at::NoGradGuard no_grad;
  if (!adds_up_whole() && !open_[group].defined()) Add(group, {});
  View(adds_up_whole() ? whole_[group] : open_[group], model_->flat[group], model_->layout.groups[group], parameter)
      .index_add_(0, ids_T, rows_TD.to(model_->state_dtype()));
}

void ShardedGradient::StartReduceScatter(int group) {
  if (adds_up_whole()) return;
  if (!open_[group].defined()) Add(group, {});
  Reduce(group, std::exchange(open_[group], at::Tensor()));
}

void ShardedGradient::Reduce(int group, at::Tensor whole) {
  WaitReduceScatter();
  const MemoryScope communication(model_->ledger, MemoryCategory::kCommunication);
  Reduction next;
  next.group = group;
  next.input = std::move(whole);
  next.output = AccountedEmpty(model_->ledger, MemoryCategory::kCommunication, model_->flat[group].shard,
                               model_->state_dtype(), model_->options.device);
  next.work = model_->shard->ReduceScatterSum(next.output, next.input);
  reduction_ = std::move(next);
}

void ShardedGradient::WaitReduceScatter() {
  const at::NoGradGuard no_grad;
  WaitHostCopy();
  if (!reduction_.has_value()) return;
  Reduction done = std::move(*reduction_);
  reduction_.reset();
  done.work->Wait();
  // Given back now, whoever still refers to it; sums of several micro-batches stay.
  if (!adds_up_whole()) FreeStorage(done.input);
  const at::Tensor& part = parts_[done.group];
  if (!model_->shard_is_apart()) {
    part.add_(done.output);
    FreeStorage(done.output);
    return;
  }
  HostSum next;
  next.group = done.group;
  next.device = std::move(done.output);
  next.host = AccountedEmpty(model_->ledger, MemoryCategory::kCommunication, part.numel(), part.scalar_type(),
                             model_->options.device, MemoryTier::kHost);
  next.copy = to_host_.Start(next.host, next.device);
  host_sum_ = std::move(next);
}

void ShardedGradient::WaitHostCopy() {
  if (!host_sum_.has_value()) return;
  HostSum done = std::move(*host_sum_);
  host_sum_.reset();
  done.copy.Wait();
  parts_[done.group].add_(done.host);
}

void ShardedGradient::FinishSync() {
  const at::NoGradGuard no_grad;
  const int groups = static_cast<int>(parts_.size());
  const bool reduces = adds_up_whole() && !whole_[0].is_same(parts_[0]);
  for (int g = 0; reduces && g < groups; ++g) Reduce(g, whole_[g]);
  WaitReduceScatter();
  WaitHostCopy();
  if (model_->replica == nullptr) return;
  for (const at::Tensor& part : parts_) AllReduce(*model_->replica, part);
}

void ShardedGradient::AllReduce(ProcessGroup& ranks, const at::Tensor& part) {
  const MemoryScope communication(model_->ledger, MemoryCategory::kCommunication);
  if (!model_->shard_is_apart()) {
    ranks.AllReduceSum(part)->Wait();
    return;
  }
  const at::Tensor device = AccountedEmpty(model_->ledger, MemoryCategory::kCommunication, part.numel(),
                                           part.scalar_type(), model_->options.device);
  device.copy_(part);
  ranks.AllReduceSum(device)->Wait();
  part.copy_(device);
}

// Squares are added in fp32 over short rows only, which divide any shard.
double ShardedGradient::Norm() {
  const at::NoGradGuard no_grad;
  at::Tensor squares = at::zeros({1}, at::TensorOptions(at::kDouble).device(model_->options.device));
  // Equal parts count once: the first replica's.
  if (model_->replica == nullptr || model_->replica->rank() == 0) {
    at::Tensor sum = at::zeros({1}, at::TensorOptions(at::kDouble).device(parts_[0].device()));
    for (const at::Tensor& part : parts_) {
      const at::Tensor rows = at::linalg_vector_norm(part.view({-1, 32}), 2, at::IntArrayRef{1}).to(at::kDouble);
      sum.add_(rows.square().sum());
    }
    squares.copy_(sum);
  }
  model_->world->AllReduceSum(squares)->Wait();
  return std::sqrt(ScalarValue(squares));
}

void ShardedGradient::Clear() {
  const at::NoGradGuard no_grad;
  for (at::Tensor& flat : open_) flat = at::Tensor();
  for (const at::Tensor& part : parts_) part.zero_();
  if (!adds_up_whole() || whole_[0].is_same(parts_[0])) return;
  for (const at::Tensor& sum : whole_) sum.zero_();
}

ShardedGradient::~ShardedGradient() {
  try {
    WaitReduceScatter();
    WaitHostCopy();
  } catch (const std::exception&) {
    // Same cause as the error that has ended the step.
  }
}

}  // namespace quartet
