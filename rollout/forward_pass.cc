// T tokens of one forward, D hidden, V vocabulary, N rows of logits.

#include "rollout/forward_pass.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <string>

#include "core/base/logging.h"
#include "core/base/meta_device.h"
#include "core/model/row_padding.h"
#include "core/model/vocabulary_head.h"
#include "core/zero/accounted_tensor.h"

namespace quartet {
namespace {

at::Tensor Find(const ParameterGroup& parameters, const std::vector<at::Tensor>& tensors, const std::string& name) {
  for (size_t i = 0; i < parameters.parameters.size(); ++i) {
    if (parameters.parameters[i].name == name) return tensors[i];
  }
  QUARTET_CHECK(false) << "group '" << parameters.name << "' has no " << name;
  return {};
}

}  // namespace

ForwardPass::ForwardPass(EngineWeights* weights, const ShareExchange* exchange, int64_t most_rows, Ledger* ledger)
    : weights_(weights), exchange_(exchange), most_rows_(most_rows), ledger_(ledger) {
  if (exchange != nullptr) {
    sum_partials_ = [exchange](const at::Tensor& partial_TD) { exchange->Sum(partial_TD); };
  }
}

void ForwardPass::TakeCache(const KvCacheShape& shape, int64_t blocks) {
  cache_.emplace(shape, blocks, weights_->model().options().device, ledger_);
}

at::Tensor ForwardPass::Run(const std::vector<ScheduledChunk>& chunks, const std::vector<int64_t>& rows,
                            const UseLogits& use) {
  const at::NoGradGuard no_grad;
  const MemoryScope activations(ledger_, MemoryCategory::kActivations);
  ShardedModel& model = weights_->model();
  const ParameterLayout& layout = model.layout();
  const ModelConfig& config = model.config();
  const auto blocks = static_cast<int>(config.num_hidden_layers);
  const bool work = !chunks.empty();

  std::vector<int64_t> ids, positions, last_rows;
  for (const ScheduledChunk& chunk : chunks) {
    for (int64_t i = chunk.first; i < chunk.first + chunk.count; ++i) {
      ids.push_back(chunk.sequence->ids[i]);
      positions.push_back(i);
    }
    if (chunk.last) last_rows.push_back(static_cast<int64_t>(ids.size()) - 1);
  }
  // What is behind the chunks belongs to no sequence.
  ids.resize(PaddedRows(static_cast<int64_t>(ids.size())), 0);
  positions.resize(ids.size(), 0);
  const auto as_tensor = [&](std::vector<int64_t>& values) {
    return at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kLong).to(model.options().device);
  };

  at::Tensor hidden_TD;
  RotaryTable rotary;
  if (work) rotary = MakeRotaryTable(config, as_tensor(positions));
  PagedAttention attention(&*cache_, chunks, config.num_attention_heads);
  const auto finish = [&](const at::Tensor& norm_D, const at::Tensor& head_VD) {
    const auto logits_of = [&](std::vector<int64_t> of_rows) {
      const at::Tensor of_ND =
          RmsNorm(at::index_select(hidden_TD, 0, as_tensor(of_rows)), norm_D, config.rms_norm_eps);
      const MemoryScope logits(ledger_, MemoryCategory::kLogits);
      const at::Tensor logits_NV = VocabularyLogits(of_ND, head_VD);
      return OnHost(exchange_ != nullptr ? exchange_->GatherLogits(logits_NV) : logits_NV.contiguous());
    };
    const auto count = static_cast<int64_t>(rows.size());
    for (int64_t begin = 0; begin < count; begin += most_rows_) {
      const int64_t end = std::min(count, begin + most_rows_);
      use(static_cast<size_t>(begin), logits_of({rows.begin() + begin, rows.begin() + end}));
    }
    return last_rows.empty() ? at::Tensor() : logits_of(last_rows);
  };
  if (const WholeWeights* whole = weights_->whole(); whole != nullptr) {
    if (!work) return {};
    hidden_TD =
        exchange_ != nullptr ? exchange_->Embed(whole->embedding, ids) : Embed(whole->embedding, as_tensor(ids));
    for (int block = 0; block < blocks; ++block) {
      attention.set_layer(block);
      hidden_TD = DecoderBlock(config, whole->blocks[block], rotary, attention, hidden_TD, sum_partials_);
    }
    return finish(whole->norm_D, whole->head);
  }
  {
    const GatheredGroup group = model.Gather(0, layout.block_group(0));
    if (work) {
      const std::vector<at::Tensor> tensors = ArrangeGathered(model, 0, group);
      hidden_TD = Embed(Find(layout.groups[0], tensors, "model.embed_tokens.weight"), as_tensor(ids));
    }
  }
  for (int block = 0; block < blocks; ++block) {
    const int index = layout.block_group(block);
    const GatheredGroup group =
        model.Gather(index, block + 1 < blocks ? layout.block_group(block + 1) : layout.head_group);
    if (!work) continue;
    attention.set_layer(block);
    const BlockWeights weights = MakeBlockWeights(layout.groups[index], ArrangeGathered(model, index, group));
    hidden_TD = DecoderBlock(config, weights, rotary, attention, hidden_TD);
  }
  const GatheredGroup group = model.Gather(layout.head_group);
  if (!work) return {};
  const std::vector<at::Tensor> tensors = ArrangeGathered(model, layout.head_group, group);
  const ParameterGroup& head = layout.groups[layout.head_group];
  return finish(Find(head, tensors, "model.norm.weight"), Find(head, tensors, HeadName(config)));
}

// Where the CPU can read it, once all that it is computed from is done.
at::Tensor ForwardPass::OnHost(const at::Tensor& values) const {
  if (ComputeDevice(values) == at::kCPU) return values;
  const at::Tensor copy = AccountedEmpty(ledger_, MemoryCategory::kLogits, values.numel(), values.scalar_type(),
                                         values.device(), MemoryTier::kHost)
                              .view(values.sizes());
  copy.copy_(values);
  return copy;
}

}  // namespace quartet
