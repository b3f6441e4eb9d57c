#include "core/model/parameter_layout.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/safetensors/reader.h"

namespace quartet {
namespace {

std::string WeightsOf(std::string_view head) { return absl::StrCat(std::string(head), ".weight"); }

void AddNorm(const std::string& name, int64_t size, ParameterGroup* group, BlockTensor in_block = BlockTensor::kCount) {
  group->parameters.push_back({absl::StrCat(name, ".weight"), {size}, /*weight_decay=*/false, in_block});
}

ParameterGroup MakeBlock(const ModelConfig& config, int64_t block) {
  using enum BlockTensor;
  const BlockSpec& spec = config.block;
  const int64_t D = config.hidden_size, F = config.intermediate_size, d = config.head_dim;
  const int64_t q = config.num_attention_heads * d, kv = config.num_key_value_heads * d;
  const std::string prefix = absl::StrCat("model.layers.", block, ".");
  ParameterGroup group{.name = absl::StrCat("block ", block), .parameters = {}};
  const auto norm = [&](BlockTensor part, std::string_view name, int64_t size) {
    if (!name.empty()) AddNorm(prefix + std::string(name), size, &group, part);
  };
  // Its bias follows the weight here as in BlockTensor.
  const auto linear = [&](BlockTensor part, std::string_view name, int64_t out, int64_t in, bool has_bias) {
    const std::string path = prefix + std::string(name);
    group.parameters.push_back({absl::StrCat(path, ".weight"), {out, in}, true, part});
    const auto bias = static_cast<BlockTensor>(static_cast<int>(part) + 1);
    if (has_bias) group.parameters.push_back({absl::StrCat(path, ".bias"), {out}, false, bias});
  };
  norm(kAttentionInputNorm, spec.attention_input_norm, D);
  linear(kQ, "self_attn.q_proj", q, D, spec.qkv_bias);
  linear(kK, "self_attn.k_proj", kv, D, spec.qkv_bias);
  linear(kV, "self_attn.v_proj", kv, D, spec.qkv_bias);
  linear(kO, "self_attn.o_proj", D, q, spec.o_bias);
  if (spec.qk_norm != QkNorm::kNone) {
    const bool each = spec.qk_norm == QkNorm::kEachHead;
    norm(kQNorm, "self_attn.q_norm", each ? d : q);
    norm(kKNorm, "self_attn.k_norm", each ? d : kv);
  }
  norm(kAttentionOutputNorm, spec.attention_output_norm, D);
  norm(kMlpInputNorm, spec.mlp_input_norm, D);
  linear(kGate, "mlp.gate_proj", F, D, spec.mlp_bias);
  linear(kUp, "mlp.up_proj", F, D, spec.mlp_bias);
  linear(kDown, "mlp.down_proj", D, F, spec.mlp_bias);
  norm(kMlpOutputNorm, spec.mlp_output_norm, D);
  return group;
}

}  // namespace

int64_t ParameterSpec::numel() const { return NumelOf(shape); }
int64_t ParameterSpec::stored_numel() const { return NumelOf(stored_shape()); }

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
  layout.final_norm = tied ? 1 : 0;
  layout.head = tied ? ParameterLayout::embedding : 1;
  if (!tied) {
    ParameterGroup group{.name = "head", .parameters = {}};
    AddNorm("model.norm", D, &group);
    if (head == HeadKind::kScalar) {
      group.parameters.push_back(ScalarHeadOf(config));
    } else {
      group.parameters.push_back({"lm_head.weight", {config.vocab_size, D}, true});
    }
    layout.head_group = static_cast<int>(layout.groups.size());
    layout.groups.push_back(std::move(group));
  }
  return layout;
}

ParameterSpec ScalarHeadOf(const ModelConfig& config) {
  return {WeightsOf(kScalarHead), {1, config.hidden_size}, true};
}

bool IsScalarHead(const ParameterSpec& parameter) { return parameter.name == WeightsOf(kScalarHead); }

std::string NameInFolder(const ParameterSpec& parameter, const ModelConfig& config) {
  return IsScalarHead(parameter) ? WeightsOf(config.scalar_head) : parameter.name;
}

}  // namespace quartet
