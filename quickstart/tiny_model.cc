#include "quickstart/tiny_model.h"

#include <nlohmann/json.hpp>

#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/model/initialize.h"

namespace quartet {

ModelConfig TinyDecoder(int64_t vocab_size) {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = vocab_size;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 4;
  config.head_dim = 16;
  config.max_position_embeddings = 128;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 10000;
  config.tie_word_embeddings = false;
  config.initializer_range = 0.05;
  config.pad_token_id = kTinyPad;
  config.eos_token_ids = {kTinyEos};
  return config;
}

std::string CharacterTokenizerJson(const std::vector<std::string>& special,
                                   const std::vector<std::string>& characters) {
  using Json = nlohmann::ordered_json;
  Json tokenizer;
  tokenizer["version"] = "1.0";
  tokenizer["truncation"] = nullptr;
  tokenizer["padding"] = nullptr;
  tokenizer["added_tokens"] = Json::array();
  Json vocabulary;
  for (const std::string& content : special) {
    Json token;
    token["id"] = vocabulary.size();
    token["content"] = content;
    for (const char* property : {"single_word", "lstrip", "rstrip", "normalized"}) token[property] = false;
    token["special"] = true;
    tokenizer["added_tokens"].push_back(token);
    vocabulary[content] = token["id"];
  }
  for (const std::string& character : characters) vocabulary[character] = vocabulary.size();
  tokenizer["normalizer"] = nullptr;
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  tokenizer["pre_tokenizer"] = byte_level;
  tokenizer["post_processor"] = nullptr;
  tokenizer["decoder"] = byte_level;
  Json model;
  model["type"] = "BPE";
  model["dropout"] = nullptr;
  model["unk_token"] = nullptr;
  model["continuing_subword_prefix"] = nullptr;
  model["end_of_word_suffix"] = nullptr;
  model["fuse_unk"] = false;
  model["byte_fallback"] = false;
  model["ignore_merges"] = false;
  model["vocab"] = vocabulary;
  model["merges"] = Json::array();
  tokenizer["model"] = model;
  return tokenizer.dump(2) + "\n";
}

std::string TinyTokenizerConfigJson(const std::string& chat_template) {
  nlohmann::ordered_json config;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  config["eos_token"] = "<eos>";
  config["pad_token"] = "<pad>";
  config["clean_up_tokenization_spaces"] = false;
  config["model_max_length"] = 128;
  if (!chat_template.empty()) config["chat_template"] = chat_template;
  return config.dump(2) + "\n";
}

absl::Status WriteTinyModelFolder(const std::string& folder, const ModelConfig& config, uint64_t seed,
                                  const std::string& tokenizer, const std::string& tokenizer_config) {
  QUARTET_RETURN_IF_ERROR(WriteRandomModel(config, HeadKind::kVocabulary, seed, Dtype::kF32, folder));
  QUARTET_RETURN_IF_ERROR(AtomicWriteFile(folder + "/tokenizer.json", tokenizer));
  return AtomicWriteFile(folder + "/tokenizer_config.json", tokenizer_config);
}

void ConfigureTinyService(ServicePlacement* placement) {
  placement->set_listen("127.0.0.1:0");
  placement->set_ranks(2);
  placement->set_threads(1);
}

void ConfigureTinyTrainer(TrainerConfig* trainer, const std::string& model) {
  trainer->set_pretrain(model);
  trainer->set_dtype("fp32");
  trainer->set_lr_scheduler("cosine");
  trainer->set_lr_warmup_ratio(0.1);
  trainer->set_min_lr_ratio(0.1);
  trainer->set_gradient_checkpointing(false);
}

}  // namespace quartet
