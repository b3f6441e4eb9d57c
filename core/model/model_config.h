// The shape of a decoder of Llama's kind, as config.json of a Hugging Face folder gives it. LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet {

// What follows the last block.
enum class HeadKind {
  kVocabulary,  // lm_head: logits over the vocabulary
  kScalar,      // score: one value (critic, reward model)
};
// What transformers calls a scalar head.
inline constexpr std::string_view kScalarHead = "score";

// Llama 3's stretching of rotary frequencies ("rope_type": "llama3").
struct RopeScaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
};

// Over what queries and keys are normalised before they are rotated.
enum class QkNorm { kNone, kEachHead, kAllHeads };

// What tells the blocks of one family of models from another's: which parameters there are (parameter_layout.cc) and
// what is done with them (decoder.cc).
struct BlockSpec {
  // Names of the norms over the hidden size: of what goes into attention and feed-forward, and of what comes out of
  // them, before it is added to the residual. Empty: there is none in that place.
  std::string_view attention_input_norm = "input_layernorm";
  std::string_view attention_output_norm = "";
  std::string_view mlp_input_norm = "post_attention_layernorm";
  std::string_view mlp_output_norm = "";
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;  // gate, up and down
  // What attention and feed-forward add to the residual is multiplied by it.
  double residual_multiplier = 1;
  // Of q k^T; none: 1 / sqrt(head_dim).
  std::optional<double> attention_multiplier;
};

// Low-rank adapters of a folder as PEFT writes it: what is added to products of a model that stays as it is.
struct AdapterConfig {
  std::string base_folder;            // the model's, absolute
  std::optional<uint64_t> base_hash;  // HashBase of it (core/model/adapter_base.h)
  int64_t r = 0;
  double alpha = 0;
  bool use_rslora = false;
  double scale = 1;                  // of what they add
  std::vector<std::string> targets;  // the products, "q_proj" and so on, the same in every block
  bool are_new = false;              // drawn, so that they add nothing yet: there is no folder of them
  bool has_head = false;             // they bring a scalar head, whole
  double dropout = 0;                // that the folder was trained with; there is none here
  std::string json;                  // adapter_config.json as read, with an absolute path of the model
};

struct ModelConfig {
  std::string model_type;  // of a family of models: "llama", "qwen2", ...
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  // Set where a layer attends through a window of so many tokens. Attention reaches over the whole sequence here, which
  // is the same for sequences up to the window; see CheckLengthInWindow.
  std::optional<int64_t> sliding_window;
  bool tie_word_embeddings = false;
  BlockSpec block;
  double embedding_multiplier = 1;  // of what the first block reads
  double logits_scaling = 1;        // logits are divided by it
  double initializer_range = 0.02;  // standard deviation of fresh weights
  HeadKind head =
      HeadKind::kVocabulary;  // of the folder: kScalar for *ForSequenceClassification with one label and OpenRLHF's
  std::string scalar_head{kScalarHead};  // its name there: the weights are "<scalar_head>.weight"
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> pad_token_id;
  std::vector<int64_t> eos_token_ids;  // generation_config.json's, else config.json's
  std::string json;                    // config.json as read
  // Of a folder of adapters; all else is its model's, but for `head` where they bring one.
  std::optional<AdapterConfig> lora;
};

// Reads `folder`/config.json (and generation_config.json where there is one); of a folder of adapters
// (core/model/lora.h) those of its model. For an absent key it takes the default of
// transformers' configuration class. INVALID_ARGUMENT names the file, the field, its value and what is allowed;
// architectures and RoPE variants that are not supported are refused by name.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& folder);

// The file that says what `config`, read of `folder`, does: there, or of adapters in their model's folder.
std::string ConfigPath(const ModelConfig& config, const std::string& folder);

// INVALID_ARGUMENT where the model of `folder`, read as `config`, would attend through a window within `length` tokens.
// `field` is the option that allows sequences of that length. Whoever runs a model checks its longest sequence.
absl::Status CheckLengthInWindow(const ModelConfig& config, const std::string& folder, std::string_view field,
                                 int64_t length);

// INVALID_ARGUMENT where `head` is kVocabulary and the model of `folder`, read as `config`, has a scalar head. The
// other way round a head can be drawn.
absl::Status CheckHead(const ModelConfig& config, const std::string& folder, HeadKind head);

// The inverse: a config.json that ReadModelConfig and transformers read as `config` with that head, whose name is
// config.scalar_head (a family without such a class, and a head of another name than transformers', become OpenRLHF's
// RewardModel). Shape fields must be as ReadModelConfig would accept them; `config.json` and `config.head` are not
// looked at. `torch_dtype` is "float32" or "bfloat16", the type of the weights beside it.
std::string ConfigJson(const ModelConfig& config, HeadKind head, std::string_view torch_dtype = "float32");

// `config.json`, of a config that ReadModelConfig has read, for the same model trained with `head`: head and type are
// told as ConfigJson tells them, OpenRLHF's class is kept where it was there, and the "mean" and "std" of another
// head's values are left out. All else stays as it is.
std::string TrainedConfigJson(const ModelConfig& config, HeadKind head, std::string_view torch_dtype);

}  // namespace quartet
