#include "rollout/engine/weights/weight_order.h"

#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <string>

#include "core/kernels/cpu/bf16_gemm.h"
#include "core/kernels/linear.h"

namespace quartet {
namespace {

// `rows` are some of the parameter's, a multiple of a panel's.
bool HasOrder(const ModelConfig& config, const ParameterSpec& parameter, const at::Tensor& rows) {
  const bool only_looked_up = parameter.name == "model.embed_tokens.weight" && !config.tie_word_embeddings;
  return !only_looked_up && parameter.shape.size() == 2 && parameter.shape[0] % kPanelRows == 0 && CanPack(rows);
}

int64_t PanelsNumel(const ParameterSpec& parameter) { return kPanelRows * parameter.shape.back(); }

}  // namespace

const char* HeadName(const ModelConfig& config) {
  return config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
}

WholeWeights ArrangeWhole(const ShardedModel& model, const std::vector<at::Tensor>& buffers) {
  const at::NoGradGuard no_grad;
  const ParameterLayout& layout = model.layout();
  const ModelConfig& config = model.config();
  WholeWeights weights;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const ParameterGroup& parameters = layout.groups[g];
    std::vector<at::Tensor> tensors = model.Views(static_cast<int>(g), buffers[g]);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const ParameterSpec& parameter = parameters.parameters[i];
      if (HasOrder(config, parameter, tensors[i])) tensors[i] = PackInPlace(tensors[i]);
      if (parameter.name == "model.embed_tokens.weight") weights.embedding = tensors[i];
      if (parameter.name == "model.norm.weight") weights.norm_D = tensors[i];
      if (parameter.name == HeadName(config)) weights.head = tensors[i];
    }
    const bool is_block = static_cast<int>(g) >= layout.block_group(0) &&
                          static_cast<int>(g) < layout.block_group(static_cast<int>(config.num_hidden_layers));
    if (is_block) weights.blocks.push_back(MakeBlockWeights(parameters, tensors));
  }
  return weights;
}

void ArrangePart(const ShardedModel& model, const std::vector<at::Tensor>& buffers) {
  const at::NoGradGuard no_grad;
  for (const ResidentPiece& piece : model.pieces()) {
    const ParameterSpec& parameter = model.layout().groups[piece.group].parameters[piece.parameter];
    const int64_t panel = PanelsNumel(parameter);
    const int64_t first = (piece.begin + panel - 1) / panel, last = (piece.begin + piece.count) / panel;
    if (parameter.shape.size() != 2 || first >= last) continue;
    const at::Tensor rows = buffers[piece.group]
                                .narrow(0, piece.shard_offset + first * panel - piece.begin, (last - first) * panel)
                                .view({(last - first) * kPanelRows, parameter.shape[1]});
    if (HasOrder(model.config(), parameter, rows)) PackInPlace(rows);
  }
}

std::vector<at::Tensor> ArrangeGathered(const ShardedModel& model, int group, const GatheredGroup& gathered) {
  const at::NoGradGuard no_grad;
  const ParameterGroup& parameters = model.layout().groups[group];
  const int64_t part = model.resident(group).numel();
  std::vector<at::Tensor> tensors = gathered.tensors();
  const int64_t beginning = tensors.front().storage_offset();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ParameterSpec& parameter = parameters.parameters[i];
    at::Tensor& tensor = tensors[i];
    if (!HasOrder(model.config(), parameter, tensor)) continue;
    const int64_t panel = PanelsNumel(parameter), offset = tensor.storage_offset() - beginning;
    int64_t arranged = -1;
    for (int64_t end = (offset / part + 1) * part - offset; end < tensor.numel(); end += part) {  // of a rank's part
      if (end % panel == 0 || end / panel == arranged) continue;
      arranged = end / panel;
      PackInPlace(tensor.narrow(0, arranged * kPanelRows, kPanelRows));
    }
    tensor = tensor.view({tensor.size(0) / kPanelRows, tensor.size(1) / 2, kPanelRows, 2});
  }
  return tensors;
}

}  // namespace quartet
