#include "core/zero/trainable_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/fail_point.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/comm/agreement.h"
#include "core/zero/accounted_tensor.h"
#include "core/zero/catch_exceptions.h"
#include "core/zero/model_folder.h"
#include "core/zero/sharded_model_impl.h"

namespace quartet {
namespace {

// A leaf of a new graph on the same memory. variable_data(), not detach(): refilling the memory of a gathered group
// must not look like a change in place to the graphs that saved its views.
at::Tensor Leaf(const at::Tensor& tensor) { return tensor.variable_data().set_requires_grad(true); }

std::vector<at::Tensor> Leaves(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& tensor : tensors) leaves.push_back(Leaf(tensor));
  return leaves;
}

// Gradients of `output` in the direction `output_gradient` with respect to `inputs`; undefined where there is none.
// Frees the graph.
std::vector<at::Tensor> Gradients(const at::Tensor& output, const at::Tensor& output_gradient,
                                  const std::vector<at::Tensor>& inputs) {
  if (!output.requires_grad()) return std::vector<at::Tensor>(inputs.size());
  return torch::autograd::grad({output}, inputs, {output_gradient}, /*retain_graph=*/false, /*create_graph=*/false,
                               /*allow_unused=*/true);
}

}  // namespace

struct TrainableModel::Impl {
  TrainableModelOptions options;
  std::unique_ptr<ShardedModel> model;
  ShardedModel::Impl* sharded = nullptr;  // of `model`

  // fp32, laid out as the resident buffers are: one per group.
  std::vector<at::Tensor> gradient, first_moment, second_moment;
  at::Tensor step_count;  // fp32 scalar, as the fused optimizer wants it
  int64_t steps = 0;

  // Elements of a group's resident buffer that are decayed alike; padding belongs to what is before it.
  struct Run {
    int group;
    int64_t begin;
    int64_t count;
    bool decay;
  };
  std::vector<Run> runs;

  // The one reduce-scatter under way.
  struct Reduction {
    int group;
    at::Tensor input, output;
    std::unique_ptr<CollectiveWork> work;
  };
  std::optional<Reduction> reduction;

  // What a block's backward pass needs.
  struct SavedBlock {
    at::Tensor input_TD;
    // Without gradient checkpointing: the graph from these leaves and the input, then a leaf too, to the output.
    std::vector<at::Tensor> weights;
    at::Tensor output_TD;
  };

  void MakeRuns();
  at::Tensor FlatGradient(int group, const std::vector<at::Tensor>& gradients);
  void Reduce(int group, at::Tensor flat);
  void FinishReduction();
  void ClearGradient();
  void Abandon() noexcept;
  double ForwardBackward(
      const PackedSequences& batch,
      const std::function<at::Tensor(const at::Tensor& hidden_TD, const at::Tensor& head_weight)>& loss);
  double GradientNorm();
};

void TrainableModel::Impl::MakeRuns() {
  for (int g = 0; g < static_cast<int>(sharded->flat.size()); ++g) {
    const auto& parameters = sharded->layout.groups[g].parameters;
    const FlatGroup& flat = sharded->flat[g];
    const int64_t begin = sharded->resident_begin(g), end = begin + sharded->resident_count(g);
    for (size_t p = 0; p < parameters.size(); ++p) {
      const int64_t first = std::max(begin, flat.offsets[p]);
      const int64_t last = std::min(end, p + 1 < parameters.size() ? flat.offsets[p + 1] : flat.total);
      if (first >= last) continue;
      const bool decay = parameters[p].weight_decay;
      if (!runs.empty() && runs.back().group == g && runs.back().decay == decay) {
        runs.back().count += last - first;
      } else {
        runs.push_back({g, first - begin, last - first, decay});
      }
    }
  }
}

// All gradients of a group end to end in fp32 (state_dtype); undefined ones and padding are zero.
at::Tensor TrainableModel::Impl::FlatGradient(int group, const std::vector<at::Tensor>& gradients) {
  const FlatGroup& layout = sharded->flat[group];
  at::Tensor flat = AccountedEmpty(sharded->ledger, MemoryCategory::kCommunication, layout.total,
                                   sharded->state_dtype(), sharded->options.device);
  const auto& parameters = sharded->layout.groups[group].parameters;
  int64_t end = 0;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (p >= gradients.size() || !gradients[p].defined()) continue;
    const int64_t begin = layout.offsets[p];
    flat.narrow(0, end, begin - end).zero_();
    flat.narrow(0, begin, parameters[p].numel()).view(parameters[p].shape).copy_(gradients[p]);
    end = begin + parameters[p].numel();
  }
  flat.narrow(0, end, layout.total - end).zero_();
  return flat;
}

// Adds the sum over ranks of `flat` to the gradient: by the time of FinishReduction, or, where nothing is sharded, of
// Step.
void TrainableModel::Impl::Reduce(int group, at::Tensor flat) {
  if (sharded->resident_is_whole || sharded->process_group->size() == 1) {
    gradient[group].add_(flat);
    return;
  }
  FinishReduction();
  const MemoryScope communication(sharded->ledger, MemoryCategory::kCommunication);
  Reduction next;
  next.group = group;
  next.input = std::move(flat);
  next.output = AccountedEmpty(sharded->ledger, MemoryCategory::kCommunication, sharded->flat[group].shard,
                               sharded->state_dtype(), sharded->options.device);
  next.work = sharded->process_group->ReduceScatterSum(next.output, next.input);
  reduction = std::move(next);
}

void TrainableModel::Impl::FinishReduction() {
  if (!reduction.has_value()) return;
  Reduction done = std::move(*reduction);
  reduction.reset();
  done.work->Wait();
  gradient[done.group].add_(done.output);
}

void TrainableModel::Impl::ClearGradient() {
  for (at::Tensor& part : gradient) part.zero_();
}

// After an error: no gathered group, no message under way, no gradient.
void TrainableModel::Impl::Abandon() noexcept {
  sharded->DropPending();
  for (at::Tensor& buffer : sharded->refill) buffer = at::Tensor();
  try {
    FinishReduction();
  } catch (const std::exception&) {
    // Same cause as the error that is on its way up.
  }
  ClearGradient();
}

double TrainableModel::Impl::ForwardBackward(
    const PackedSequences& batch,
    const std::function<at::Tensor(const at::Tensor& hidden_TD, const at::Tensor& head_weight)>& loss) {
  at::NoGradGuard no_grad;
  const MemoryScope activations(sharded->ledger, MemoryCategory::kActivations);
  const ModelConfig& config = sharded->config;
  const ParameterLayout& layout = sharded->layout;
  const at::Tensor positions = sharded->Positions(batch);
  // An empty micro-batch goes through the same collectives with zero gradients.
  const bool empty = positions.numel() == 0;
  const int blocks = static_cast<int>(config.num_hidden_layers);
  const bool keep_graphs = !options.gradient_checkpointing && !empty;
  const PackedCausalAttention attention(batch.starts);
  RotaryTable rotary;
  if (!empty) rotary = MakeRotaryTable(config, positions, sharded->state_dtype());
  const at::Tensor ids = batch.ids_T.to(sharded->options.device);
  const int embedding = sharded->FindParameter(0, "model.embed_tokens.weight");
  auto run_block = [&](int group, const std::vector<at::Tensor>& tensors, const at::Tensor& input_TD) {
    return DecoderBlock(config, MakeBlockWeights(layout.groups[group], tensors), rotary, attention, input_TD);
  };

  // Forward.
  std::vector<SavedBlock> saved(blocks);
  at::Tensor hidden;
  {
    GatheredGroup group = sharded->Gather(0, layout.block_group(0));
    if (!empty) hidden = Embed(group.tensors()[embedding], ids);
  }
  for (int b = 0; b < blocks; ++b) {
    const int g = layout.block_group(b);
    const at::Tensor buffer = sharded->pending.has_value() ? sharded->pending->buffer : at::Tensor();
    GatheredGroup group = sharded->Gather(g, b + 1 < blocks ? g + 1 : layout.head_group);
    if (empty) continue;
    SavedBlock& block = saved[b];
    block.input_TD = hidden;
    if (keep_graphs) {
      at::AutoGradMode with_grad(true);
      block.weights = Leaves(group.tensors());
      block.input_TD = Leaf(hidden);
      block.output_TD = run_block(g, block.weights, block.input_TD);
      hidden = block.output_TD.variable_data();
      // The graph refers to this memory, which is given back now and filled again for the backward pass.
      sharded->refill[g] = buffer;
    } else {
      hidden = run_block(g, group.tensors(), hidden);
    }
  }

  // The head, and the gradient of what goes into it.
  double value = 0;
  at::Tensor hidden_gradient, tied_gradient;
  {
    const int g = layout.head_group;
    std::vector<at::Tensor> gradients(layout.groups[g].parameters.size());
    GatheredGroup group = sharded->Gather(g, layout.block_group(blocks - 1));
    if (!empty) {
      const MemoryScope logits(sharded->ledger, MemoryCategory::kLogits);
      at::AutoGradMode with_grad(true);
      const int norm = sharded->norm_parameter(), head = sharded->head_parameter();
      const at::Tensor input = Leaf(hidden), norm_weight = Leaf(group.tensors()[norm]),
                       head_weight = Leaf(group.tensors()[head]);
      const at::Tensor result = loss(RmsNorm(input, norm_weight, config.rms_norm_eps), head_weight);
      value = result.item<double>();
      std::vector<at::Tensor> found = Gradients(result, at::Tensor(), {input, norm_weight, head_weight});
      hidden_gradient = found[0].defined() ? found[0] : at::zeros_like(hidden);
      gradients[norm] = found[1];
      gradients[head] = found[2];
    }
    at::Tensor flat = FlatGradient(g, gradients);
    if (g == 0) {
      tied_gradient = std::move(flat);  // goes out once, when the embedding's part has been added
    } else {
      Reduce(g, std::move(flat));
    }
  }
  hidden = at::Tensor();

  for (int b = blocks - 1; b >= 0; --b) {
    const int g = layout.block_group(b);
    std::vector<at::Tensor> gradients;
    {
      GatheredGroup group = sharded->Gather(g, b > 0 ? g - 1 : -1);
      SavedBlock block = std::move(saved[b]);
      if (!empty) {
        at::AutoGradMode with_grad(true);
        if (!keep_graphs) {
          block.weights = Leaves(group.tensors());
          block.input_TD = Leaf(block.input_TD);
          block.output_TD = run_block(g, block.weights, block.input_TD);
        }
        std::vector<at::Tensor> inputs = block.weights;
        inputs.push_back(block.input_TD);
        gradients = Gradients(block.output_TD, hidden_gradient, inputs);
        hidden_gradient = gradients.back().defined() ? gradients.back() : at::zeros_like(block.input_TD);
        gradients.pop_back();
      }
    }
    Reduce(g, FlatGradient(g, gradients));
  }

  // The embedding's gradient: rows are added in fp32, where a sum in bf16 would lose those of frequent tokens.
  at::Tensor flat = tied_gradient.defined() ? std::move(tied_gradient) : FlatGradient(0, {});
  if (!empty) {
    const ParameterSpec& table = layout.groups[0].parameters[embedding];
    flat.narrow(0, sharded->flat[0].offsets[embedding], table.numel())
        .view(table.shape)
        .index_add_(0, ids, hidden_gradient.to(sharded->state_dtype()));
  }
  Reduce(0, std::move(flat));
  FinishReduction();
  return value;
}

// Of the whole gradient, the same bits on every rank. Squares are added in fp32 over short rows only, which divide any
// shard.
double TrainableModel::Impl::GradientNorm() {
  at::Tensor squares = at::zeros({1}, at::TensorOptions(at::kDouble).device(sharded->options.device));
  for (const at::Tensor& part : gradient) {
    const at::Tensor rows = at::linalg_vector_norm(part.view({-1, 32}), 2, at::IntArrayRef{1}).to(at::kDouble);
    squares.add_(rows.square().sum());
  }
  if (!sharded->resident_is_whole) sharded->process_group->AllReduceSum(squares)->Wait();
  return std::sqrt(squares.item<double>());
}

TrainableModel::TrainableModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TrainableModel::~TrainableModel() = default;

absl::StatusOr<std::unique_ptr<TrainableModel>> TrainableModel::Load(const std::string& folder,
                                                                     const TrainableModelOptions& options,
                                                                     ProcessGroup* group, Ledger* ledger) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->options.model.trainable = true;
  QUARTET_ASSIGN_OR_RETURN(impl->model, ShardedModel::Load(folder, impl->options.model, group, ledger));
  impl->sharded = impl->model->impl_.get();
  try {
    for (const at::Tensor& resident : impl->sharded->resident) {
      auto zeros = [&](MemoryCategory category) {
        return AccountedZeros(ledger, category, resident.numel(), impl->sharded->state_dtype(), options.model.device);
      };
      impl->gradient.push_back(zeros(MemoryCategory::kGradients));
      impl->first_moment.push_back(zeros(MemoryCategory::kOptimizer));
      impl->second_moment.push_back(zeros(MemoryCategory::kOptimizer));
    }
    impl->step_count = at::zeros({}, at::TensorOptions(at::kFloat).device(options.model.device));
  } catch (const std::exception& error) {
    return StatusOf(error, "optimizer state for " + folder, *ledger);
  }
  impl->MakeRuns();
  return std::unique_ptr<TrainableModel>(new TrainableModel(std::move(impl)));
}

ShardedModel& TrainableModel::model() { return *impl_->model; }

int64_t TrainableModel::steps() const { return impl_->steps; }

std::vector<NamedState> TrainableModel::state(int group) const {
  return {{"master", impl_->sharded->resident[group]},
          {"exp_avg", impl_->first_moment[group]},
          {"exp_avg_sq", impl_->second_moment[group]}};
}

void TrainableModel::Restore(int64_t steps) {
  impl_->steps = steps;
  for (int g = 0; g < static_cast<int>(impl_->sharded->flat.size()); ++g) impl_->sharded->RefreshWhole(g);
}

const at::Tensor& TrainableModel::gradient(int group) const { return impl_->gradient[group]; }

double TrainableModel::ForwardBackward(
    const PackedSequences& batch,
    const std::function<at::Tensor(const at::Tensor& hidden_TD, const at::Tensor& head_weight)>& loss) {
  try {
    return impl_->ForwardBackward(batch, loss);
  } catch (...) {
    impl_->Abandon();
    throw;
  }
}

StepResult TrainableModel::Step(double learning_rate, double max_norm) {
  Impl& impl = *impl_;
  at::NoGradGuard no_grad;
  const MemoryScope temporaries(impl.sharded->ledger, MemoryCategory::kOptimizer);
  if (impl.sharded->resident_is_whole) {
    for (const at::Tensor& part : impl.gradient) impl.sharded->process_group->AllReduceSum(part)->Wait();
  }
  StepResult result;
  result.grad_norm = impl.GradientNorm();
  if (!std::isfinite(result.grad_norm)) {
    result.skipped = true;
    impl.ClearGradient();
    return result;
  }
  // As torch.nn.utils.clip_grad_norm_ does it. The optimizer divides the gradient by this.
  const double clip = max_norm > 0 ? std::min(1.0, max_norm / (result.grad_norm + 1e-6)) : 1.0;
  std::optional<at::Tensor> divisor;
  if (clip < 1) divisor = at::full({}, 1 / clip, impl.step_count.options());

  ++impl.steps;
  impl.step_count.fill_(static_cast<double>(impl.steps));
  const AdamWOptions& adamw = impl.options.adamw;
  for (const bool decay : {false, true}) {
    std::vector<at::Tensor> weights, gradients, first, second, counts;
    for (const Impl::Run& run : impl.runs) {
      if (run.decay != decay) continue;
      auto part = [&](const std::vector<at::Tensor>& buffers) {
        return buffers[run.group].narrow(0, run.begin, run.count);
      };
      weights.push_back(part(impl.sharded->resident));
      gradients.push_back(part(impl.gradient));
      first.push_back(part(impl.first_moment));
      second.push_back(part(impl.second_moment));
      counts.push_back(impl.step_count);
    }
    if (weights.empty()) continue;
    at::_fused_adamw_(weights, gradients, first, second, /*max_exp_avg_sqs=*/{}, counts, learning_rate, adamw.beta1,
                      adamw.beta2, decay ? adamw.weight_decay : 0, adamw.eps, /*amsgrad=*/false, /*maximize=*/false,
                      divisor);
  }
  impl.ClearGradient();
  for (int g = 0; g < static_cast<int>(impl.gradient.size()); ++g) impl.sharded->RefreshWhole(g);
  return result;
}

absl::StatusOr<int64_t> TrainableModel::Save(const std::string& folder) {
  ShardedModel::Impl& sharded = *impl_->sharded;
  ProcessGroup& group = *sharded.process_group;
  const at::Device device = sharded.options.device;
  const at::ScalarType type = sharded.options.compute_dtype == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
  // Rank 0 writes what all ranks gather. An error of its own waits until all have heard of it, so that they stay in
  // step; the writer, and with it what it wrote, has gone by then.
  std::unique_ptr<ModelFolderWriter> writer;
  absl::Status mine;
  const auto write = [&](auto&& work) {
    try {
      mine = work();
    } catch (const std::exception& error) {
      mine = absl::InternalError(absl::StrCat("saving to ", folder, ": ", error.what()));
    }
    if (!mine.ok()) writer.reset();
  };
  try {
    if (group.rank() == 0) {
      write([&]() -> absl::Status {
        ModelFolderOptions options;
        options.source = sharded.folder;
        options.target = folder;
        options.dtype = type == at::kFloat ? Dtype::kF32 : Dtype::kBF16;
        options.head = sharded.options.head;
        QUARTET_ASSIGN_OR_RETURN(writer, ModelFolderWriter::Create(sharded.config, sharded.layout, options));
        return absl::OkStatus();
      });
    }
    QUARTET_RETURN_IF_ERROR(AgreeOnStatus(group, mine, device));

    const int groups = static_cast<int>(sharded.flat.size());
    for (int g = 0; g < groups; ++g) {
      GatheredGroup gathered = sharded.Gather(g, g + 1 < groups ? g + 1 : -1);
      if (writer == nullptr) continue;
      write([&]() -> absl::Status {
        for (int p = 0; p < static_cast<int>(gathered.tensors().size()); ++p) {
          const at::Tensor values = gathered.tensors()[p].to(at::kCPU, type);
          QUARTET_RETURN_IF_ERROR(writer->Write(g, p, values.const_data_ptr()));
        }
        return absl::OkStatus();
      });
    }
    int64_t bytes = 0;
    if (writer != nullptr) {
      write([&]() -> absl::Status {
        QUARTET_RETURN_IF_ERROR(FailPoint("trainable_model.save"));
        QUARTET_ASSIGN_OR_RETURN(bytes, writer->Finish());
        return absl::OkStatus();
      });
    }
    QUARTET_RETURN_IF_ERROR(AgreeOnStatus(group, mine, device));
    const at::Tensor total = at::full({1}, bytes, at::TensorOptions(at::kLong).device(device));
    group.AllReduceSum(total)->Wait();
    return total.item<int64_t>();
  } catch (const std::exception& error) {
    sharded.DropPending();
    return absl::UnavailableError(absl::StrCat("saving to ", folder, ": ", error.what()));
  }
}

}  // namespace quartet
