// One micro-batch forward and backward: an explicit loop over groups of parameters, each gathered, used and released.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>
#include <vector>

#include "core/base/fail_point.h"
#include "core/base/trace.h"
#include "core/hardware/meta_device.h"
#include "core/memory/accounted_tensor.h"
#include "core/model/decoder/packed_attention.h"
#include "core/zero/saved_inputs.h"
#include "core/zero/trainable_model_impl.h"

namespace quartet {
namespace {

// A leaf of a new graph on the same memory. variable_data(), not detach(): refilling the memory of a gathered group
// must not look like a change in place to the graphs that saved its views.
at::Tensor Leaf(const at::Tensor& tensor) { return tensor.variable_data().set_requires_grad(true); }

// The same that is no leaf: of what is not trained.
at::Tensor Constant(const at::Tensor& tensor) { return tensor.variable_data(); }

template <typename Make>
std::vector<at::Tensor> OfEach(const std::vector<at::Tensor>& tensors, Make make) {
  std::vector<at::Tensor> made;
  for (const at::Tensor& tensor : tensors) made.push_back(make(tensor));
  return made;
}

// Gradients of `output` in the direction `output_gradient` with respect to those of `inputs` that are leaves; undefined
// where there is none. Frees the graph.
std::vector<at::Tensor> Gradients(const at::Tensor& output, const at::Tensor& output_gradient,
                                  const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) {
    if (input.requires_grad()) leaves.push_back(input);
  }
  std::vector<at::Tensor> gradients(inputs.size());
  if (!output.requires_grad() || leaves.empty()) return gradients;
  std::vector<at::Tensor> found =
      torch::autograd::grad({output}, leaves, {output_gradient}, /*retain_graph=*/false, /*create_graph=*/false,
                            /*allow_unused=*/true);
  for (size_t i = 0, next = 0; i < inputs.size(); ++i) {
    if (inputs[i].requires_grad()) gradients[i] = std::move(found[next++]);
  }
  return gradients;
}

// A block's forward pass: leaves for what is trained of it and for its input, and the graph from them to the output.
struct BlockGraph {
  std::vector<at::Tensor> weights;
  at::Tensor input_TD;
  at::Tensor output_TD;
};

}  // namespace

double TrainableModel::Impl::ForwardBackward(const PackedSequences& batch, const LossFunction& loss) {
  at::NoGradGuard no_grad;
  const MemoryScope activations(sharded->ledger, MemoryCategory::kActivations);
  const ModelConfig& config = sharded->config;
  const ParameterLayout& layout = sharded->layout;
  const at::Tensor positions = sharded->Positions(batch);
  // An empty micro-batch goes through the same collectives with zero gradients.
  const bool empty = positions.numel() == 0;
  const int blocks = static_cast<int>(config.num_hidden_layers);
  const bool keep_graphs = !options.gradient_checkpointing && !empty;
  const PackedCausalAttention attention(batch.rows());
  RotaryTable rotary;
  if (!empty) rotary = MakeRotaryTable(config, positions, sharded->state_dtype());
  const at::Tensor ids = batch.ids_T.to(sharded->options.device);
  auto run_block = [&](const BlockWeights& weights, const at::Tensor& input_TD) {
    return DecoderBlock(config, weights, rotary, attention, input_TD);
  };
  auto make_graph = [&](int group, const std::vector<at::Tensor>& tensors, const at::Tensor& input_TD) {
    const at::AutoGradMode with_grad(true);
    if (!trains_adapters()) {
      BlockGraph graph = {.weights = OfEach(tensors, Leaf), .input_TD = Leaf(input_TD), .output_TD = {}};
      graph.output_TD = run_block(sharded->Block(group, graph.weights, {}), graph.input_TD);
      return graph;
    }
    // Below the first block nothing is trained.
    const bool has_more_below = group != layout.block_group(0);
    BlockGraph graph = {.weights = OfEach(sharded->AdaptersOf(group), Leaf),
                        .input_TD = has_more_below ? Leaf(input_TD) : Constant(input_TD),
                        .output_TD = {}};
    graph.output_TD = run_block(sharded->Block(group, OfEach(tensors, Constant), graph.weights), graph.input_TD);
    return graph;
  };
  // The group of what is trained that a block's weights are in.
  auto trained_group = [&](int group) { return trains_adapters() ? sharded->adapters_group(group) : group; };

  // Forward. Of each block its input is kept, or its graph.
  SavedInputs inputs(sharded->ledger, sharded->options.device, options.activation_offload, blocks);
  std::vector<BlockGraph> graphs(blocks);
  at::Tensor hidden;
  {
    GatheredGroup group = sharded->Gather(0, layout.block_group(0));
    const TraceScope span("embedding");
    if (!empty) hidden = Stem(config, group.tensors()[ParameterLayout::embedding], ids);
  }
  for (int b = 0; b < blocks; ++b) {
    const int g = layout.block_group(b);
    const at::Tensor buffer = sharded->pending.has_value() ? sharded->pending->buffer : at::Tensor();
    GatheredGroup group = sharded->Gather(g, b + 1 < blocks ? g + 1 : layout.head_group);
    if (empty) continue;
    const TraceScope span("forward block ", b);
    if (keep_graphs) {
      graphs[b] = make_graph(g, group.tensors(), hidden);
      hidden = graphs[b].output_TD.variable_data();
      // The graph refers to this memory, which is given back now and filled again for the backward pass.
      sharded->groups[g].refill = buffer;
    } else {
      inputs.Save(b, hidden);
      hidden = run_block(sharded->Block(g, group.tensors(), sharded->AdaptersOf(g)), hidden);
    }
  }

  // The head, and the gradient of what goes into it.
  double value = 0;
  at::Tensor hidden_gradient;
  const bool has_adapters_head = sharded->has_adapters_head();
  {
    const int g = layout.head_group;
    GatheredGroup group = sharded->Gather(g, layout.block_group(blocks - 1));
    if (!empty) {
      const TraceScope span("head");
      const MemoryScope logits(sharded->ledger, MemoryCategory::kLogits);
      const at::AutoGradMode with_grad(true);
      const int norm = layout.final_norm, head = layout.head;
      const auto weight = [&](int parameter) {
        const at::Tensor& tensor = group.tensors()[parameter];
        return trains_adapters() ? Constant(tensor) : Leaf(tensor);
      };
      const at::Tensor input = Leaf(hidden), norm_weight = weight(norm),
                       head_weight = has_adapters_head ? Leaf(sharded->AdaptersHead()) : weight(head);
      const at::Tensor result = loss(FinalNorm(config, sharded->options.head, norm_weight, input), head_weight);
      value = ScalarValue(result);
      std::vector<at::Tensor> found = Gradients(result, at::Tensor(), {input, norm_weight, head_weight});
      hidden_gradient = found[0].defined() ? found[0] : at::zeros_like(hidden);
      if (has_adapters_head) gradient->Add(trained->layout.head_group, {found[2]});
      if (!trains_adapters()) {
        std::vector<at::Tensor> gradients(layout.groups[g].parameters.size());
        gradients[norm] = found[1];
        gradients[head] = found[2];
        gradient->Add(g, gradients);
      }
    }
    if (has_adapters_head) gradient->StartReduceScatter(trained->layout.head_group);
    // With tied embeddings it goes out once, when the embedding's part has been added.
    if (!trains_adapters() && g != 0) gradient->StartReduceScatter(g);
  }
  hidden = at::Tensor();

  for (int b = blocks - 1; b >= 0; --b) {
    ThrowAtFailPoint("trainable_model.backward");
    const int g = layout.block_group(b);
    std::vector<at::Tensor> gradients;
    {
      GatheredGroup group = sharded->Gather(g, b > 0 ? g - 1 : -1);
      if (!empty) {
        const TraceScope span("backward block ", b);
        const BlockGraph graph =
            keep_graphs ? std::exchange(graphs[b], {}) : make_graph(g, group.tensors(), inputs.Take(b));
        std::vector<at::Tensor> leaves = graph.weights;
        leaves.push_back(graph.input_TD);
        gradients = Gradients(graph.output_TD, hidden_gradient, leaves);
        hidden_gradient = gradients.back().defined() ? gradients.back() : at::zeros_like(graph.input_TD);
        gradients.pop_back();
      }
    }
    gradient->Add(trained_group(g), gradients);
    gradient->StartReduceScatter(trained_group(g));
  }

  // The embedding's gradient: rows are added in fp32, where a sum in bf16 would lose those of frequent tokens.
  if (!trains_adapters()) {
    if (!empty) gradient->AddRows(0, ParameterLayout::embedding, ids, StemGradient(config, hidden_gradient));
    gradient->StartReduceScatter(0);
  }
  gradient->WaitReduceScatter();
  return value;
}

}  // namespace quartet
