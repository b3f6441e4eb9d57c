// The families of models: a row for each. LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "core/model/model_config.h"

namespace quartet {

// Which layers attend through the window that config.json states.
enum class Windows {
  kNone,        // whatever it states
  kAll,         // unless it is null
  kSomeOfThem,  // with use_sliding_window: those that layer_types says, else those from max_window_layers on
};

// A family of models: what its blocks are, what transformers calls it, which keys its configuration class knows, and
// what that class fills in for a key that config.json lacks; testdata/config_defaults.json holds all of it against
// those classes.
struct Family {
  std::string_view model_type;
  std::string_view causal_lm;
  std::string_view classification = "";  // none: transformers has no such class
  std::string_view tokenizer;            // the class that AutoTokenizer takes where no file names one
  BlockSpec block = {};
  bool has_attention_bias = false;  // of q, k, v and o
  bool has_mlp_bias = false;
  bool has_multipliers = false;
  Windows windows = Windows::kNone;
  int64_t vocab_size;
  int64_t intermediate_size;
  int64_t max_position_embeddings;
  std::optional<int64_t> num_key_value_heads = std::nullopt;  // none: as many as heads
  std::optional<int64_t> head_dim = std::nullopt;             // none: hidden_size / num_attention_heads
  double rms_norm_eps = 1e-6;
  std::optional<int64_t> bos_token_id = std::nullopt;
  std::optional<int64_t> eos_token_id = std::nullopt;
  std::optional<int64_t> pad_token_id = std::nullopt;
};
std::span<const Family> Families();
// Null for one that is not supported.
const Family* FindFamily(std::string_view model_type);

// OpenRLHF's classes, around any family's decoder. Their config.json names the head.
inline constexpr std::string_view kNamedHeads[] = {"RewardModel", "CriticModel"};
bool HasNamedHead(std::string_view architecture);

}  // namespace quartet
