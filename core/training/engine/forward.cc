#include "core/training/engine/forward.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include <functional>

#include "core/base/status_macros.h"
#include "core/hardware/meta_device.h"
#include "core/model/decoder/decoder.h"
#include "core/model/decoder/vocabulary_head.h"

namespace quartet {
namespace {

// What a micro-batch's hidden states and the head's weight give: fp32 values, `counts[i]` of them for sequence i.
struct Outputs {
  at::Tensor values;
  std::vector<int64_t> counts;
};
using Head = std::function<Outputs(const PackedBatch& batch, const at::Tensor& hidden_TD, const at::Tensor& weight)>;

absl::Status Forward(ShardedModel& model, const ForwardCall& call, const std::vector<TokenSequence>& sequences,
                     const Head& head, std::vector<TokenValues>* replies) {
  QUARTET_ASSIGN_OR_RETURN(const auto micro_batches, CutMicroBatches(sequences, call.micro_batch_sizes()));
  for (const std::vector<const TokenSequence*>& part : micro_batches) {
    const PackedBatch batch = Pack(part, model);
    Outputs outputs;
    model.Forward(
        batch.sequences,
        [&](const at::Tensor& hidden_TD, const at::Tensor& weight) {
          if (!part.empty()) outputs = head(batch, hidden_TD, weight);
        },
        /*with_adapters=*/!call.without_adapters());
    if (part.empty()) continue;
    const at::Tensor values = HostValues(outputs.values).to(at::kFloat).contiguous();
    const float* next = values.const_data_ptr<float>();
    for (size_t i = 0; i < part.size(); ++i) {
      TokenValues& reply = replies->emplace_back();
      reply.set_index(part[i]->index());
      reply.mutable_values()->Assign(next, next + outputs.counts[i]);
      next += outputs.counts[i];
    }
  }
  return absl::OkStatus();
}

}  // namespace

at::Tensor ScalarHead(const at::Tensor& hidden_TD, const at::Tensor& head_1D, const at::Tensor& rows_A) {
  const at::ScalarType wide = WideType(hidden_TD.scalar_type());
  return at::linear(hidden_TD.index_select(0, rows_A).to(wide), head_1D.to(wide)).squeeze(1);
}

at::Tensor ActionScalars(const at::Tensor& hidden_TD, const at::Tensor& head_1D, const HeadTargets& actions) {
  const at::Tensor of_rows_U = ScalarHead(hidden_TD, head_1D, actions.rows_U);
  return actions.starts_U.defined() ? of_rows_U.index_select(0, actions.row_places_A) : of_rows_U;
}

absl::Status ForwardLogProbs(ShardedModel& model, const ForwardCall& call, const std::vector<TokenSequence>& sequences,
                             std::vector<TokenValues>* replies) {
  return Forward(
      model, call, sequences,
      [&](const PackedBatch& batch, const at::Tensor& hidden_TD, const at::Tensor& weight) {
        if (batch.num_actions == 0)
          return Outputs{at::empty({0}, at::TensorOptions().dtype(at::kFloat)), batch.actions};
        return Outputs{ChunkedLogProbs(hidden_TD, weight, batch.targets, call.temperature(), {}).log_prob_T,
                       batch.actions};
      },
      replies);
}

absl::Status ForwardScalars(ShardedModel& model, ScalarRows rows, const ForwardCall& call,
                            const std::vector<TokenSequence>& sequences, std::vector<TokenValues>* replies) {
  return Forward(
      model, call, sequences,
      [&](const PackedBatch& batch, const at::Tensor& hidden_TD, const at::Tensor& weight) {
        if (rows == ScalarRows::kBeforeActions) {
          return Outputs{ActionScalars(hidden_TD, weight, batch.targets), batch.actions};
        }
        return Outputs{ScalarHead(hidden_TD, weight, batch.last_rows_S), std::vector<int64_t>(batch.actions.size(), 1)};
      },
      replies);
}

}  // namespace quartet
