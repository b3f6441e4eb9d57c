// T tokens of one forward, D hidden, V vocabulary, N rows of logits.

#include "rollout/engine/forward_pass.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/logging.h"
#include "core/hardware/meta_device.h"
#include "core/kernels/cuda/cuda_paged_attention.h"
#include "core/kernels/row_padding.h"
#include "core/memory/accounted_tensor.h"
#include "core/model/decoder/vocabulary_head.h"

namespace quartet {
namespace {

// Whether forwards of one token a sequence are the same kernels each time.
bool CanBeRecorded(const ShardedModel& model, const ShareExchange* exchange) {
  const ModelConfig& config = model.config();
  return model.options().zero_stage == 0 && exchange == nullptr &&
         CudaPagedAttention::Fits(model.options().compute_dtype, config.head_dim,
                                  config.num_attention_heads / config.num_key_value_heads);
}

}  // namespace

ForwardPass::ForwardPass(ForwardOptions options, EngineWeights* weights, const ShareExchange* exchange, Ledger* ledger)
    : options_(std::move(options)),
      weights_(weights),
      exchange_(exchange),
      ledger_(ledger),
      records_(options_.new_recorder != nullptr && CanBeRecorded(weights->model(), exchange)) {
  if (exchange != nullptr) {
    sum_partials_ = [exchange](const at::Tensor& partial_TD) { exchange->Sum(partial_TD); };
  }
}

void ForwardPass::TakeCache(const KvCacheShape& shape, int64_t blocks) {
  cache_.emplace(shape, blocks + spare_blocks(), weights_->model().options().device, ledger_);
}

void ForwardPass::DropCache() {
  graphs_.reset();
  cache_.reset();
}

void ForwardPass::Record() {
  const WholeWeights* whole = weights_->whole();
  if (!records_ || !cache_.has_value() || whole == nullptr) return;
  if (graphs_.has_value() && recorded_places_ == weights_->places()) return;
  graphs_.reset();
  const at::NoGradGuard no_grad;
  const MemoryScope activations(ledger_, MemoryCategory::kActivations);
  const ShardedModel& model = weights_->model();
  const ModelConfig& config = model.config();
  // Of every position, so that no replay computes angles.
  const RotaryTable all_positions = MakeRotaryTable(
      config, at::arange(options_.max_model_len, at::TensorOptions(at::kLong).device(model.options().device)));
  const DecodeGraphOptions options = {.heads = config.num_attention_heads,
                                      .max_model_len = options_.max_model_len,
                                      .max_num_seqs = options_.max_num_seqs};
  // The weights' tensors by value: what a recording reads is where they are now.
  auto forward = [this, weights = *whole, all_positions, &config](
                     const at::Tensor& ids_B, const at::Tensor& positions_B, PagedAttention& attention) {
    const RotaryTable rotary{.cos_Td = at::index_select(all_positions.cos_Td, 0, positions_B),
                             .sin_Td = at::index_select(all_positions.sin_Td, 0, positions_B)};
    const at::Tensor hidden_BD = ThroughBlocks(weights, rotary, attention, Stem(config, weights.embedding, ids_B));
    return VocabularyLogits(FinalNorm(config, HeadKind::kVocabulary, weights.norm_D, hidden_BD), weights.head,
                            weights_->model().vocabulary());
  };
  graphs_.emplace(options_.new_recorder(), &*cache_, options, std::move(forward), ledger_);
  recorded_places_ = weights_->places();
}

at::Tensor ForwardPass::ThroughBlocks(const WholeWeights& weights, const RotaryTable& rotary, PagedAttention& attention,
                                      at::Tensor hidden_TD) const {
  const ModelConfig& config = weights_->model().config();
  for (size_t block = 0; block < weights.blocks.size(); ++block) {
    attention.set_layer(static_cast<int64_t>(block));
    hidden_TD = DecoderBlock(config, weights.blocks[block], rotary, attention, hidden_TD, sum_partials_);
  }
  return hidden_TD;
}

at::Tensor ForwardPass::Run(const std::vector<ScheduledChunk>& chunks, const std::vector<int64_t>& rows,
                            const UseLogits& use) {
  const at::NoGradGuard no_grad;
  const MemoryScope activations(ledger_, MemoryCategory::kActivations);
  if (rows.empty() && graphs_.has_value() && recorded_places_ == weights_->places() && graphs_->Fit(chunks)) {
    ++replays_;
    return graphs_->Run(chunks);
  }
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
    const auto logits_of = [&](std::vector<int64_t> of_rows, bool on_host) {
      const at::Tensor of_ND =
          FinalNorm(config, HeadKind::kVocabulary, norm_D, at::index_select(hidden_TD, 0, as_tensor(of_rows)));
      const MemoryScope logits(ledger_, MemoryCategory::kLogits);
      const at::Tensor logits_NV = VocabularyLogits(of_ND, head_VD, model.vocabulary());
      const at::Tensor all = exchange_ != nullptr ? exchange_->GatherLogits(logits_NV) : logits_NV.contiguous();
      return on_host || all.is_meta() ? HostCopyOf(ledger_, MemoryCategory::kLogits, all) : all;
    };
    const auto count = static_cast<int64_t>(rows.size());
    for (int64_t begin = 0; begin < count; begin += options_.max_num_seqs) {
      const int64_t end = std::min(count, begin + options_.max_num_seqs);
      use(static_cast<size_t>(begin), static_cast<size_t>(end - begin),
          logits_of({rows.begin() + begin, rows.begin() + end}, /*on_host=*/true));
    }
    return last_rows.empty() ? at::Tensor() : logits_of(last_rows, /*on_host=*/exchange_ != nullptr);
  };
  if (const WholeWeights* whole = weights_->whole(); whole != nullptr) {
    if (!work) return {};
    hidden_TD =
        exchange_ != nullptr ? exchange_->Stem(whole->embedding, ids) : Stem(config, whole->embedding, as_tensor(ids));
    hidden_TD = ThroughBlocks(*whole, rotary, attention, hidden_TD);
    return finish(whole->norm_D, whole->head);
  }
  // The first group, or the head's: of tied embeddings the same, which stays gathered meanwhile.
  const bool tied = layout.is_tied();
  std::optional<GatheredGroup> ends = model.Gather(0, layout.block_group(0));
  std::vector<at::Tensor> tensors;
  if (work) {
    tensors = ArrangeGathered(model, 0, *ends);
    hidden_TD = Stem(config, tensors[ParameterLayout::embedding], as_tensor(ids));
  }
  if (!tied) {
    tensors.clear();
    ends.reset();
  }
  for (int block = 0; block < blocks; ++block) {
    const int index = layout.block_group(block);
    const int next = block + 1 < blocks ? layout.block_group(block + 1) : tied ? -1 : layout.head_group;
    const GatheredGroup group = model.Gather(index, next);
    if (!work) continue;
    attention.set_layer(block);
    const BlockWeights weights = model.Block(index, ArrangeGathered(model, index, group));
    hidden_TD = DecoderBlock(config, weights, rotary, attention, hidden_TD);
  }
  if (!tied) ends = model.Gather(layout.head_group);
  if (!work) return {};
  if (!tied) tensors = ArrangeGathered(model, layout.head_group, *ends);
  return finish(tensors[layout.final_norm], tensors[layout.head]);
}

}  // namespace quartet
