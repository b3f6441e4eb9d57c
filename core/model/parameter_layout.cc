#include "core/model/parameter_layout.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

// A linear layer's weight [out, in] and, where it has one, bias [out].
void AddLinear(const std::string& name, int64_t out, int64_t in, bool bias, ParameterGroup* group) {
  group->parameters.push_back({absl::StrCat(name, ".weight"), {out, in}, true});
  if (bias) group->parameters.push_back({absl::StrCat(name, ".bias"), {out}, false});
}

void AddNorm(const std::string& name, int64_t size, ParameterGroup* group) {
  group->parameters.push_back({absl::StrCat(name, ".weight"), {size}, false});
}

ParameterGroup MakeBlock(const ModelConfig& config, int64_t block) {
  const int64_t D = config.hidden_size, F = config.intermediate_size;
  const int64_t q = config.num_attention_heads * config.head_dim, kv = config.num_key_value_heads * config.head_dim;
  const bool qkv_bias = config.qkv_bias || config.attention_bias;
  const std::string prefix = absl::StrCat("model.layers.", block, ".");
  ParameterGroup group{.name = absl::StrCat("block ", block), .parameters = {}};
  AddNorm(prefix + "input_layernorm", D, &group);
  AddLinear(prefix + "self_attn.q_proj", q, D, qkv_bias, &group);
  AddLinear(prefix + "self_attn.k_proj", kv, D, qkv_bias, &group);
  AddLinear(prefix + "self_attn.v_proj", kv, D, qkv_bias, &group);
  AddLinear(prefix + "self_attn.o_proj", D, q, config.attention_bias, &group);
  if (config.qk_norm) {
    AddNorm(prefix + "self_attn.q_norm", config.head_dim, &group);
    AddNorm(prefix + "self_attn.k_norm", config.head_dim, &group);
  }
  AddNorm(prefix + "post_attention_layernorm", D, &group);
  AddLinear(prefix + "mlp.gate_proj", F, D, config.mlp_bias, &group);
  AddLinear(prefix + "mlp.up_proj", F, D, config.mlp_bias, &group);
  AddLinear(prefix + "mlp.down_proj", D, F, config.mlp_bias, &group);
  return group;
}

int64_t Product(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

}  // namespace

int64_t ParameterSpec::numel() const { return Product(shape); }
int64_t ParameterSpec::stored_numel() const { return Product(stored_shape()); }

StridedRange ParameterSpec::stored_range() const {
  if (!slice.has_value()) return {.begin = 0, .count = numel()};
  if (slice->dimension == 0) return {.begin = slice->begin * (numel() / shape[0]), .count = numel()};
  return {.begin = slice->begin, .count = shape[1], .rows = shape[0], .stride = slice->stored_shape[1]};
}

int64_t ParameterGroup::numel() const {
  int64_t sum = 0;
  for (const ParameterSpec& parameter : parameters) sum += parameter.numel();
  return sum;
}

int64_t ParameterLayout::numel() const {
  int64_t sum = 0;
  for (const ParameterGroup& group : groups) sum += group.numel();
  return sum;
}

ParameterLayout MakeParameterLayout(const ModelConfig& config, HeadKind head) {
  const int64_t D = config.hidden_size;
  ParameterLayout layout;
  ParameterGroup embedding{.name = "embedding", .parameters = {}};
  embedding.parameters.push_back({"model.embed_tokens.weight", {config.vocab_size, D}, true});
  const bool tied = head == HeadKind::kVocabulary && config.tie_word_embeddings;
  if (tied) AddNorm("model.norm", D, &embedding);
  layout.groups.push_back(std::move(embedding));
  for (int64_t block = 0; block < config.num_hidden_layers; ++block) layout.groups.push_back(MakeBlock(config, block));
  if (!tied) {
    ParameterGroup group{.name = "head", .parameters = {}};
    AddNorm("model.norm", D, &group);
    if (head == HeadKind::kScalar) {
      group.parameters.push_back({"score.weight", {1, D}, true});
    } else {
      group.parameters.push_back({"lm_head.weight", {config.vocab_size, D}, true});
    }
    layout.head_group = static_cast<int>(layout.groups.size());
    layout.groups.push_back(std::move(group));
  }
  return layout;
}

}  // namespace quartet
