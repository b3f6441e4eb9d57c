#include "core/training/batch/sequence_cost.h"

#include "core/kernels/cpu/attention/sequence_rows.h"

namespace quartet {

Sharing SharingOn(bool cpu, bool bf16, int64_t head_dim) {
  if (cpu) return Sharing::kBlocks;
  return FlashAttentionTakes(bf16, head_dim) ? Sharing::kKeyCopies : Sharing::kNone;
}

SequenceCost MakeSequenceCost(const ModelConfig& config, HeadKind head, Sharing sharing) {
  const auto layers = static_cast<double>(config.num_hidden_layers), hidden = static_cast<double>(config.hidden_size),
             attention = static_cast<double>(config.num_attention_heads * config.head_dim),
             key_value = static_cast<double>(config.num_key_value_heads * config.head_dim),
             intermediate = static_cast<double>(config.intermediate_size);
  // q and o, k and v, gate, up and down.
  const double block_weights = hidden * (2 * attention + 2 * key_value + 3 * intermediate);
  SequenceCost cost;
  cost.per_token = 2 * layers * block_weights;
  cost.per_token_squared = 4 * layers * attention / 2;
  cost.per_action = 2 * hidden * (head == HeadKind::kVocabulary ? static_cast<double>(config.vocab_size) : 1);
  cost.sharing = sharing;
  return cost;
}

}  // namespace quartet
