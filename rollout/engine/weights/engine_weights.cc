#include "rollout/engine/weights/engine_weights.h"

#include <ATen/core/Tensor.h>

#include <utility>

#include "core/base/fail_point.h"
#include "core/base/status_macros.h"
#include "core/model/strided_range.h"

namespace quartet {
namespace {

// Accounted by the model, as parameters.
class Staging : public WeightStaging {
 public:
  // `in_order`: as they are computed with, adapters are.
  Staging(const ShardedModel& model, bool in_order, std::vector<at::Tensor> buffers)
      : model_(model), buffers_(std::move(buffers)), prepared_(in_order) {
    std::vector<int32_t> first_tensor;  // of each group
    int32_t tensors = 0;
    for (const ParameterGroup& group : model.layout().groups) {
      first_tensor.push_back(tensors);
      tensors += static_cast<int32_t>(group.parameters.size());
    }
    for (const ParameterShard& piece : model.parameter_shards()) {
      const at::Tensor& buffer = buffers_[piece.group];
      char* data = nullptr;
      if (!buffer.is_meta()) {
        data = static_cast<char*>(buffer.mutable_data_ptr()) + piece.shard_offset * buffer.element_size();
      }
      const StridedRange stored = model.layout().groups[piece.group].parameters[piece.parameter].stored_range();
      for (int64_t done = 0; done < piece.count;) {
        const StridedRange part = NextPart(stored, piece.begin + done, piece.count - done);
        char* const part_data = data == nullptr ? nullptr : data + done * buffer.element_size();
        ranges_.push_back({first_tensor[piece.group] + piece.parameter, part, part_data});
        done += part.numel();
      }
    }
  }
  const std::vector<StagedRange>& ranges() const override { return ranges_; }
  void Prepare() override {
    if (model_.stages_apart() || prepared_) return;
    prepared_ = true;
    if (model_.options().zero_stage == 0) {
      whole_ = ArrangeWhole(model_, buffers_);
    } else {
      ArrangePart(model_, buffers_);
    }
  }

  std::vector<at::Tensor>& buffers() { return buffers_; }
  // Views of the buffers, where those are whole, prepared, and will be the weights in use.
  std::optional<WholeWeights>& whole() { return whole_; }

 private:
  const ShardedModel& model_;
  std::vector<at::Tensor> buffers_;
  std::vector<StagedRange> ranges_;
  bool prepared_;
  std::optional<WholeWeights> whole_;
};

}  // namespace

EngineWeights::EngineWeights(std::unique_ptr<ShardedModel> model) : model_(std::move(model)) {
  for (const ParameterGroup& parameters : staged().layout().groups) {
    tensors_.insert(tensors_.end(), parameters.parameters.begin(), parameters.parameters.end());
  }
  ArrangeShards();
}

std::unique_ptr<WeightStaging> EngineWeights::NewStaging() {
  std::vector<at::Tensor> buffers;
  {
    const std::lock_guard lock(spare_mutex_);
    buffers.swap(spare_);
  }
  if (buffers.empty()) buffers = staged().NewStagedBuffers();
  return std::make_unique<Staging>(staged(), /*in_order=*/model_->adapters() != nullptr, std::move(buffers));
}

void EngineWeights::ReserveStaging() {
  std::vector<at::Tensor> buffers = staged().NewStagedBuffers();
  const std::lock_guard lock(spare_mutex_);
  spare_ = std::move(buffers);
}

void EngineWeights::Use(WeightStaging& staging) {
  std::vector<at::Tensor> left_over = model_->adapters() == nullptr ? UseModel(staging) : UseAdapters(staging);
  const std::lock_guard lock(spare_mutex_);
  spare_ = std::move(left_over);
}

std::vector<at::Tensor> EngineWeights::UseAdapters(WeightStaging& staging) {
  ShardedModel& adapters = *model_->adapters();
  if (FailPointArmed("rollout.commit.unused")) return {};
  std::vector<at::Tensor> left_over = adapters.SwapWeights(std::move(static_cast<Staging&>(staging).buffers()));
  if (!adapters.stages_apart()) ++places_;
  // Where the model is sharded each forward asks for them.
  if (whole_.has_value()) {
    for (size_t block = 0; block < whole_->blocks.size(); ++block) {
      model_->Adapt(model_->layout().block_group(static_cast<int>(block)), &whole_->blocks[block]);
    }
  }
  return left_over;
}

std::vector<at::Tensor> EngineWeights::UseModel(WeightStaging& staging) {
  auto& staged = static_cast<Staging&>(staging);
  staged.Prepare();
  if (!model_->stages_apart() || !held_) ++places_;
  whole_ = std::move(staged.whole());
  std::vector<at::Tensor> left_over = model_->SwapWeights(std::move(staged.buffers()));
  if (model_->options().zero_stage == 0 && !whole_.has_value()) ArrangeShards();
  held_ = true;
  return left_over;
}

void EngineWeights::Release() {
  whole_.reset();
  model_->ReleaseShards();
  held_ = false;
}

void EngineWeights::ReleaseSpare() {
  const std::lock_guard lock(spare_mutex_);
  spare_.clear();
}

absl::StatusOr<uint64_t> EngineWeights::ReadAgain() {
  Staging staging(*model_, /*in_order=*/false, model_->NewStagedBuffers());
  QUARTET_ASSIGN_OR_RETURN(const uint64_t hash, model_->ReadShards(staging.buffers()));
  std::vector<at::Tensor> left_over = UseModel(staging);
  if (model_->adapters() != nullptr) return hash;
  const std::lock_guard lock(spare_mutex_);
  spare_ = std::move(left_over);
  return hash;
}

void EngineWeights::ArrangeShards() {
  std::vector<at::Tensor> buffers;
  for (size_t g = 0; g < model_->layout().groups.size(); ++g) {
    buffers.push_back(model_->shard(static_cast<int>(g)));
  }
  if (model_->options().zero_stage == 0) {
    whole_ = ArrangeWhole(*model_, buffers);
  } else {
    ArrangePart(*model_, buffers);
  }
}

}  // namespace quartet
