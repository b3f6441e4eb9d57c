#include "core/model/families.h"

#include <algorithm>
#include <iterator>

namespace quartet {
namespace {

constexpr Family kFamilies[] = {
    {.model_type = "llama",
     .causal_lm = "LlamaForCausalLM",
     .classification = "LlamaForSequenceClassification",
     .tokenizer = "LlamaTokenizer",
     .has_attention_bias = true,
     .has_mlp_bias = true,
     .vocab_size = 32000,
     .intermediate_size = 11008,
     .max_position_embeddings = 2048,
     .bos_token_id = 1,
     .eos_token_id = 2},
    {.model_type = "qwen2",
     .causal_lm = "Qwen2ForCausalLM",
     .classification = "Qwen2ForSequenceClassification",
     .tokenizer = "Qwen2Tokenizer",
     .block = {.qkv_bias = true},
     .windows = Windows::kSomeOfThem,
     .vocab_size = 151936,
     .intermediate_size = 22016,
     .max_position_embeddings = 32768,
     .num_key_value_heads = 32},
    {.model_type = "qwen3",
     .causal_lm = "Qwen3ForCausalLM",
     .classification = "Qwen3ForSequenceClassification",
     .tokenizer = "Qwen2Tokenizer",
     .block = {.qk_norm = QkNorm::kEachHead},
     .has_attention_bias = true,
     .windows = Windows::kSomeOfThem,
     .vocab_size = 151936,
     .intermediate_size = 22016,
     .max_position_embeddings = 32768,
     .num_key_value_heads = 32,
     .head_dim = 128},
    {.model_type = "mistral",
     .causal_lm = "MistralForCausalLM",
     .classification = "MistralForSequenceClassification",
     .tokenizer = "LlamaTokenizer",
     .windows = Windows::kAll,
     .vocab_size = 32000,
     .intermediate_size = 14336,
     .max_position_embeddings = 131072,
     .num_key_value_heads = 8,
     .bos_token_id = 1,
     .eos_token_id = 2},
    {.model_type = "granite",
     .causal_lm = "GraniteForCausalLM",
     .tokenizer = "GPT2Tokenizer",
     .has_attention_bias = true,
     .has_mlp_bias = true,
     .has_multipliers = true,
     .vocab_size = 32000,
     .intermediate_size = 11008,
     .max_position_embeddings = 2048,
     .bos_token_id = 1,
     .eos_token_id = 2},
    {.model_type = "olmo2",
     .causal_lm = "Olmo2ForCausalLM",
     .tokenizer = "GPTNeoXTokenizer",
     .block = {.attention_input_norm = "",
               .attention_output_norm = "post_attention_layernorm",
               .mlp_input_norm = "",
               .mlp_output_norm = "post_feedforward_layernorm",
               .qk_norm = QkNorm::kAllHeads},
     .has_attention_bias = true,
     .vocab_size = 50304,
     .intermediate_size = 11008,
     .max_position_embeddings = 2048,
     .rms_norm_eps = 1e-5,
     .eos_token_id = 50279,
     .pad_token_id = 1},
};
static_assert(std::ranges::none_of(kFamilies, [](const Family& family) { return family.tokenizer.empty(); }));

}  // namespace

std::span<const Family> Families() { return kFamilies; }

const Family* FindFamily(std::string_view model_type) {
  const auto* const found = std::ranges::find(kFamilies, model_type, &Family::model_type);
  return found == std::end(kFamilies) ? nullptr : found;
}

bool HasNamedHead(std::string_view architecture) {
  return std::ranges::find(kNamedHeads, architecture) != std::end(kNamedHeads);
}

}  // namespace quartet
