// Which parameters a model has, and in which groups they are gathered. LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/model_config.h"

namespace quartet {

struct ParameterSpec {
  std::string name;            // Hugging Face name, such as "model.layers.0.mlp.up_proj.weight"
  std::vector<int64_t> shape;  // row-major
  bool weight_decay = true;    // false for norms and biases
  int64_t numel() const;
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
  int head_group = 0;  // equals 0 with tied embeddings
  int64_t numel() const;
};

ParameterLayout MakeParameterLayout(const ModelConfig& config, HeadKind head);

}  // namespace quartet
