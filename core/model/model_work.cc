#include "core/model/model_work.h"

#include "core/model/parameter_layout.h"

namespace quartet {

ModelWork WorkOf(const ModelConfig& model, HeadKind head) {
  ModelWork work;
  const ParameterLayout layout = MakeParameterLayout(model, head);
  const auto layers = static_cast<double>(model.num_hidden_layers);
  for (const ParameterSpec& parameter : layout.groups.at(layout.block_group(0)).parameters) {
    if (parameter.shape.size() == 2) work.block_weights += layers * static_cast<double>(parameter.numel());
  }
  work.head_weights = static_cast<double>(model.hidden_size) *
                      (head == HeadKind::kVocabulary ? static_cast<double>(model.vocab_size) : 1);
  work.attention_flops = 4 * layers * static_cast<double>(model.num_attention_heads * model.head_dim);
  work.cached_elements = 2 * layers * static_cast<double>(model.num_key_value_heads * model.head_dim);
  return work;
}

}  // namespace quartet
