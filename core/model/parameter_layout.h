// Which parameters a model has, and in which groups they are gathered. LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/model/model_config.h"
#include "core/model/strided_range.h"

namespace quartet {

// Which part of a stored tensor a parameter is: from `begin` on in one dimension, all of it in the others.
struct TensorSlice {
  std::vector<int64_t> stored_shape;
  int dimension = 0;  // 0: rows, 1: columns
  int64_t begin = 0;
  int copies = 1;  // neighbouring ranks that have this part
};

// What a parameter of a block is there for. D hidden, H heads, K key/value heads, d head dimension, F feed-forward.
enum class BlockTensor {
  kAttentionInputNorm,  // [D], as the other norms of BlockSpec
  kQ,                   // [H * d, D]
  kQBias,               // [H * d]
  kK,                   // [K * d, D]
  kKBias,
  kV,  // [K * d, D]
  kVBias,
  kO,  // [D, H * d]
  kOBias,
  kQNorm,  // [d], or [H * d] with QkNorm::kAllHeads
  kKNorm,  // [d], or [K * d]
  kAttentionOutputNorm,
  kMlpInputNorm,
  kGate,  // [F, D]
  kGateBias,
  kUp,  // [F, D]
  kUpBias,
  kDown,  // [D, F]
  kDownBias,
  kMlpOutputNorm,
  kCount,
};

struct ParameterSpec {
  std::string name;                                 // transformers', such as "model.layers.0.mlp.up_proj.weight"
  std::vector<int64_t> shape;                       // row-major
  bool weight_decay = true;                         // false for norms and biases
  BlockTensor in_block = BlockTensor::kCount;       // kCount: not in a block
  std::optional<TensorSlice> slice = std::nullopt;  // none: all of the tensor of that name
  int64_t numel() const;
  int64_t stored_numel() const;
  // Of the tensor that folders and publishers have under this name.
  const std::vector<int64_t>& stored_shape() const { return slice.has_value() ? slice->stored_shape : shape; }
  // Which of its elements are the parameter's, in the parameter's order.
  StridedRange stored_range() const;
};

// Parameters that are gathered, used and released together.
struct ParameterGroup {
  std::string name;  // "embedding", "block 0", "head"
  std::vector<ParameterSpec> parameters;
  int64_t numel() const;
};

// Group 0 is the embedding. Then one group a block. Then the head: final norm and lm_head (or score). With tied
// embeddings there is no head group: group 0 holds the embedding and the final norm, is used twice and receives two
// gradients.
struct ParameterLayout {
  std::vector<ParameterGroup> groups;
  int block_group(int block) const { return 1 + block; }
  // Where a parameter stands; the embedding is the first of group 0. With tied embeddings it is the head, too.
  static constexpr int embedding = 0;  // in group 0
  int head_group = 0;                  // equals 0 with tied embeddings
  int final_norm = 0, head = 0;        // in head_group
  bool is_tied() const { return head_group == 0; }
  int64_t numel() const;
};

ParameterLayout MakeParameterLayout(const ModelConfig& config, HeadKind head);

ParameterSpec ScalarHeadOf(const ModelConfig& config);
bool IsScalarHead(const ParameterSpec& parameter);
// What the model folder of `config` calls a parameter: by its name, but for a scalar head that has one of its own
// there.
std::string NameInFolder(const ParameterSpec& parameter, const ModelConfig& config);

}  // namespace quartet
