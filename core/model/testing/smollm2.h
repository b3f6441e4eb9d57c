// A model's shape that people know.
#pragma once

#include "core/model/model_config.h"

namespace quartet {

// SmolLM2-135M.
inline ModelConfig SmolLm2() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 49152;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_hidden_layers = 30;
  config.num_attention_heads = 9;
  config.num_key_value_heads = 3;
  config.head_dim = 64;
  config.max_position_embeddings = 8192;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 100000;
  config.tie_word_embeddings = true;
  return config;
}

}  // namespace quartet
