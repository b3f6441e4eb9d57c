#include "rollout/engine/weights/engine_weights.h"

#include <ATen/core/Tensor.h>

#include <utility>

#include "core/base/status_macros.h"
#include "core/model/strided_range.h"

namespace quartet {
namespace {

// Accounted by the model, as parameters.
class Staging : public WeightStaging {
 public:
  Staging(const ShardedModel& model, const std::vector<int32_t>& first_tensor, std::vector<at::Tensor> buffers)
      : model_(model), buffers_(std::move(buffers)) {
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
  bool prepared_ = false;
  std::optional<WholeWeights> whole_;
};

}  // namespace

EngineWeights::EngineWeights(std::unique_ptr<ShardedModel> model) : model_(std::move(model)) {
  for (const ParameterGroup& parameters : model_->layout().groups) {
    first_tensor_.push_back(static_cast<int32_t>(tensors_.size()));
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
  if (buffers.empty()) buffers = model_->NewStagedBuffers();
  return std::make_unique<Staging>(*model_, first_tensor_, std::move(buffers));
}

void EngineWeights::ReserveStaging() {
  std::vector<at::Tensor> buffers = model_->NewStagedBuffers();
  const std::lock_guard lock(spare_mutex_);
  spare_ = std::move(buffers);
}

void EngineWeights::Use(WeightStaging& staging) {
  auto& staged = static_cast<Staging&>(staging);
  staged.Prepare();
  if (!model_->stages_apart() || !held_) ++places_;
  whole_ = std::move(staged.whole());
  std::vector<at::Tensor> left_over = model_->SwapWeights(std::move(staged.buffers()));
  if (model_->options().zero_stage == 0 && !whole_.has_value()) ArrangeShards();
  held_ = true;
  const std::lock_guard lock(spare_mutex_);
  spare_ = std::move(left_over);
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

absl::Status EngineWeights::ReadAgain() {
  Staging staging(*model_, first_tensor_, model_->NewStagedBuffers());
  QUARTET_RETURN_IF_ERROR(model_->ReadShards(staging.buffers()));
  Use(staging);
  return absl::OkStatus();
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
