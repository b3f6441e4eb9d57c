#include "rollout/engine/weights/weight_order.h"

#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <string>

#include "core/base/division.h"
#include "core/hardware/meta_device.h"
#include "core/kernels/cpu/products/gemm.h"
#include "core/kernels/linear.h"

namespace quartet {
namespace {

// `rows` are some of the parameter's, a multiple of a panel's.
bool HasOrder(const ParameterLayout& layout, int group, const ParameterSpec& parameter, const at::Tensor& rows) {
  const bool only_looked_up = group == 0 && !layout.is_tied();
  return !only_looked_up && parameter.shape.size() == 2 && parameter.shape[0] % kPanelRows == 0 && CanPack(rows);
}

int64_t PanelsNumel(const ParameterSpec& parameter) { return kPanelRows * parameter.shape.back(); }

}  // namespace

WholeWeights ArrangeWhole(const ShardedModel& model, const std::vector<at::Tensor>& buffers) {
  const at::NoGradGuard no_grad;
  const ParameterLayout& layout = model.layout();
  WholeWeights weights;
  for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g) {
    const ParameterGroup& parameters = layout.groups[g];
    std::vector<at::Tensor> tensors = model.Views(g, buffers[g]);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (HasOrder(layout, g, parameters.parameters[i], tensors[i])) tensors[i] = PackInPlace(tensors[i]);
    }
    if (g == 0) weights.embedding = tensors[ParameterLayout::embedding];
    if (g == layout.head_group) {
      weights.norm_D = tensors[layout.final_norm];
      weights.head = tensors[layout.head];
    } else if (g != 0) {
      BlockWeights& block = weights.blocks.emplace_back(model.Block(g, tensors));
      if (ComputeDevice(tensors.front()) == at::kCUDA) block.JoinProducts();
    }
  }
  return weights;
}

void ArrangePart(const ShardedModel& model, const std::vector<at::Tensor>& buffers) {
  const at::NoGradGuard no_grad;
  for (const ParameterShard& piece : model.parameter_shards()) {
    const ParameterSpec& parameter = model.layout().groups[piece.group].parameters[piece.parameter];
    const int64_t panel = PanelsNumel(parameter);
    const int64_t first = CeilDivide(piece.begin, panel), last = (piece.begin + piece.count) / panel;
    if (parameter.shape.size() != 2 || first >= last) continue;
    const at::Tensor rows = buffers[piece.group]
                                .narrow(0, piece.shard_offset + first * panel - piece.begin, (last - first) * panel)
                                .view({(last - first) * kPanelRows, parameter.shape[1]});
    if (HasOrder(model.layout(), piece.group, parameter, rows)) PackInPlace(rows);
  }
}

std::vector<at::Tensor> ArrangeGathered(const ShardedModel& model, int group, const GatheredGroup& gathered) {
  const at::NoGradGuard no_grad;
  const ParameterGroup& parameters = model.layout().groups[group];
  const int64_t part = model.shard(group).numel();
  std::vector<at::Tensor> tensors = gathered.tensors();
  const int64_t beginning = tensors.front().storage_offset();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ParameterSpec& parameter = parameters.parameters[i];
    at::Tensor& tensor = tensors[i];
    if (!HasOrder(model.layout(), group, parameter, tensor)) continue;
    const int64_t panel = PanelsNumel(parameter), offset = tensor.storage_offset() - beginning;
    int64_t arranged = -1;
    for (int64_t end = (offset / part + 1) * part - offset; end < tensor.numel(); end += part) {  // of a rank's part
      if (end % panel == 0 || end / panel == arranged) continue;
      arranged = end / panel;
      PackInPlace(tensor.narrow(0, arranged * kPanelRows, kPanelRows));
    }
    tensor = AsPacked(tensor);
  }
  return tensors;
}

}  // namespace quartet
