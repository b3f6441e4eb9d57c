// The adapters of a sharded model: a second one, and what forwards make of it.
#include <utility>

#include "absl/strings/str_join.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/model/lora.h"
#include "core/zero/sharded/sharded_model_impl.h"

namespace quartet {

absl::StatusOr<std::unique_ptr<CheckpointReader>> ShardedModel::OpenAdaptersOf(const Impl& model, Impl* impl) {
  impl->config = model.config;
  impl->layout = MakeLoraLayout(model.config, model.layout);
  std::unique_ptr<CheckpointReader> reader;
  if (impl->options.device.is_meta()) return reader;
  impl->are_new_adapters = model.config.lora->are_new;
  if (!impl->are_new_adapters) {
    QUARTET_ASSIGN_OR_RETURN(reader, OpenAdapters(impl->folder, impl->layout));
  } else if (impl->has_adapters_head()) {
    QUARTET_ASSIGN_OR_RETURN(reader, CheckpointReader::Open(model.folder));
  }
  const AdapterConfig& lora = *impl->config.lora;
  if (impl->logs()) {
    QUARTET_LOG(kInfo) << impl->folder << (lora.are_new ? ": new adapters of rank " : ": adapters of rank ") << lora.r
                       << ", times " << lora.scale << ", of " << absl::StrJoin(lora.targets, ", ")
                       << (lora.has_head ? ", and the scalar head" : "")
                       << (lora.dropout == 0 ? "" : "; there is no dropout here, lora_dropout is off");
  }
  return reader;
}

ShardedModel* ShardedModel::adapters() const { return impl_->adapters.get(); }

BlockWeights ShardedModel::Block(int group, const std::vector<at::Tensor>& tensors) const {
  return impl_->Block(group, tensors, impl_->AdaptersOf(group));
}

std::vector<at::Tensor> ShardedModel::Impl::AdaptersOf(int group) const {
  if (adapters == nullptr) return {};
  return adapters->impl_->WholeGroup(adapters_group(group));
}

void ShardedModel::Adapt(int group, BlockWeights* weights) const {
  const Impl& model = *impl_;
  if (model.adapters == nullptr) return;
  weights->Adapt(model.adapters->layout().groups[Impl::adapters_group(group)], model.AdaptersOf(group),
                 model.config.lora->scale);
}

uint64_t ShardedModel::folder_hash() const { return impl_->folder_hash; }

int64_t ShardedModel::Impl::FirstPosition(int group, int parameter) const {
  int64_t position = 0;
  for (int g = 0; g <= group; ++g) {
    const std::vector<ParameterSpec>& parameters = layout.groups[g].parameters;
    const size_t count = g == group ? static_cast<size_t>(parameter) : parameters.size();
    for (size_t p = 0; p < count; ++p) position += parameters[p].stored_numel();
  }
  return position;
}

BlockWeights ShardedModel::Impl::Block(int group, const std::vector<at::Tensor>& tensors,
                                       const std::vector<at::Tensor>& adapter_tensors) const {
  BlockWeights weights(layout.groups[group], tensors);
  if (adapters != nullptr) {
    weights.Adapt(adapters->layout().groups[adapters_group(group)], adapter_tensors, config.lora->scale);
  }
  return weights;
}

at::Tensor ShardedModel::Impl::AdaptersHead() const {
  return adapters->impl_->WholeGroup(adapters->layout().head_group).front();
}

}  // namespace quartet
