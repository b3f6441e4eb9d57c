#include "core/model/testing/whole_model.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/model/decoder/packed_attention.h"
#include "core/safetensors/reader.h"

namespace quartet {

absl::StatusOr<at::Tensor> ReadTensor(const CheckpointReader& reader, const std::string& name) {
  const auto it = reader.tensors().find(name);
  if (it == reader.tensors().end()) return absl::NotFoundError(name);
  at::ScalarType type;
  switch (it->second.dtype) {
    case Dtype::kF32:
      type = at::kFloat;
      break;
    case Dtype::kBF16:
      type = at::kBFloat16;
      break;
    case Dtype::kI64:
      type = at::kLong;
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat(name, " has a type that tests do not read"));
  }
  at::Tensor tensor = at::empty(it->second.shape, type);
  QUARTET_RETURN_IF_ERROR(reader.ReadRange(name, 0, tensor.numel(), tensor.data_ptr()));
  return tensor;
}

absl::StatusOr<WholeModel> WholeModel::Load(const std::string& folder, at::ScalarType type) {
  WholeModel model;
  QUARTET_ASSIGN_OR_RETURN(model.config_, ReadModelConfig(folder));
  model.layout_ = MakeParameterLayout(model.config_, model.config_.head);
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader, CheckpointReader::Open(folder));
  for (const ParameterGroup& group : model.layout_.groups) {
    std::vector<at::Tensor>& tensors = model.parameters_.emplace_back();
    for (const ParameterSpec& parameter : group.parameters) {
      QUARTET_ASSIGN_OR_RETURN(const at::Tensor tensor, ReadTensor(*reader, parameter.name));
      if (tensor.sizes() != at::IntArrayRef(parameter.shape)) {
        return absl::InvalidArgumentError(absl::StrCat(parameter.name, " has another shape than its layout"));
      }
      tensors.push_back(tensor.to(type));
    }
  }
  return model;
}

void WholeModel::RequireGradients() {
  for (std::vector<at::Tensor>& group : parameters_) {
    for (at::Tensor& tensor : group) tensor.set_requires_grad(true);
  }
}

at::Tensor WholeModel::Forward(const at::Tensor& ids_T, const std::vector<int64_t>& cu_seqlens) const {
  std::vector<at::Tensor> positions;
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i)
    positions.push_back(at::arange(cu_seqlens[i + 1] - cu_seqlens[i], at::kLong));
  const RotaryTable rotary = MakeRotaryTable(config_, at::cat(positions, 0));
  const PackedCausalAttention attention({.cu_seqlens = cu_seqlens, .shared = {}});
  at::Tensor hidden = Stem(config_, parameters_.front()[ParameterLayout::embedding], ids_T);
  for (int block = 0; block < config_.num_hidden_layers; ++block) {
    const int group = layout_.block_group(block);
    hidden = DecoderBlock(config_, BlockWeights(layout_.groups[group], parameters_[group]), rotary, attention, hidden);
  }
  return FinalNorm(config_, config_.head, parameters_[layout_.head_group][layout_.final_norm], hidden);
}

const at::Tensor& WholeModel::head_weight() const { return parameters_[layout_.head_group][layout_.head]; }

}  // namespace quartet
