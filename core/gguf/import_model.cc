#include "core/gguf/import_model.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/files.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/model_folder.h"
#include "core/gguf/reader.h"
#include "core/hardware/bf16.h"
#include "core/model/model_config.h"
#include "core/model/parameter_layout.h"

namespace quartet {
namespace {

using Json = nlohmann::ordered_json;

// What is left of a parameter's name behind "model.layers.N.", and of a tensor's behind "blk.N.".
constexpr std::pair<const char*, const char*> kOfBlock[] = {
    {"input_layernorm.weight", "attn_norm.weight"},    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},      {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"}, {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},       {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
};

// The tensor that holds a parameter of a Llama; "": none does.
std::string TensorName(const std::string& parameter) {
  if (parameter == "model.embed_tokens.weight") return "token_embd.weight";
  if (parameter == "model.norm.weight") return "output_norm.weight";
  if (parameter == "lm_head.weight") return "output.weight";
  const std::vector<std::string> parts = absl::StrSplit(parameter, absl::MaxSplits('.', 3));
  if (parts.size() < 4) return "";
  for (const auto& [of_parameter, of_tensor] : kOfBlock) {
    if (parts[3] == of_parameter) return absl::StrCat("blk.", parts[2], ".", of_tensor);
  }
  return "";
}

// llama.cpp rotates neighbours, transformers halves: rows 2 i and 2 i + 1 of a head are its rows i and i + d / 2.
std::vector<float> HalvesOfHeads(const std::vector<float>& neighbours, int64_t heads, int64_t columns) {
  std::vector<float> halves(neighbours.size());
  const int64_t half = std::ssize(neighbours) / columns / heads / 2;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < half; ++i) {
      for (int64_t part = 0; part < 2; ++part) {
        std::memcpy(&halves[((h * 2 + part) * half + i) * columns], &neighbours[((h * half + i) * 2 + part) * columns],
                    columns * sizeof(float));
      }
    }
  }
  return halves;
}

// In place, from the front.
void RoundToBf16(std::vector<float>& values) {
  auto* to = reinterpret_cast<char*>(values.data());
  for (const float value : values) {
    const uint16_t rounded = ToBf16(value);
    std::memcpy(to, &rounded, sizeof(rounded));
    to += sizeof(rounded);
  }
}

class Importer {
 public:
  explicit Importer(const GgufFile& file) : file_(file) {}

  // What is no weight, into `folder`.
  absl::Status WriteCompanions(const std::string& folder) {
    QUARTET_RETURN_IF_ERROR(CheckKind());
    QUARTET_ASSIGN_OR_RETURN(tokens_, file_.Texts("tokenizer.ggml.tokens"));
    QUARTET_ASSIGN_OR_RETURN(const ModelConfig config, Config());
    const auto write = [&](const char* name, const std::string& text) {
      return AtomicWriteFile(absl::StrCat(folder, "/", name), text);
    };
    QUARTET_RETURN_IF_ERROR(write("config.json", ConfigJson(config, HeadKind::kVocabulary)));
    QUARTET_ASSIGN_OR_RETURN(const Json tokenizer, TokenizerJson());
    QUARTET_RETURN_IF_ERROR(write("tokenizer.json", tokenizer.dump(2)));
    QUARTET_ASSIGN_OR_RETURN(const Json tokenizer_config, TokenizerConfigJson());
    QUARTET_RETURN_IF_ERROR(write("tokenizer_config.json", tokenizer_config.dump(2) + "\n"));
    if (!file_.Has("tokenizer.chat_template")) return absl::OkStatus();
    QUARTET_ASSIGN_OR_RETURN(const std::string chat_template, file_.Text("tokenizer.chat_template"));
    return write("chat_template.jinja", chat_template);
  }

  // A parameter's elements in fp32.
  absl::StatusOr<std::vector<float>> Values(const ModelConfig& config, const ParameterSpec& parameter) const {
    const std::string name = TensorName(parameter.name);
    const auto found = file_.tensors().find(name);
    if (found == file_.tensors().end()) {
      return Error(absl::StrCat("has no tensor ", name, ", which ", parameter.name, " would be made of"));
    }
    const GgufTensor& tensor = found->second;
    if (tensor.shape != parameter.shape) {
      return Error(absl::StrCat("tensor ", name, " has another shape than ", parameter.name));
    }
    std::vector<float> values = Dequantise(tensor);
    if (absl::EndsWith(name, ".attn_q.weight")) {
      return HalvesOfHeads(values, config.num_attention_heads, parameter.shape[1]);
    }
    if (absl::EndsWith(name, ".attn_k.weight")) {
      return HalvesOfHeads(values, config.num_key_value_heads, parameter.shape[1]);
    }
    return values;
  }

  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": ", what));
  }

 private:
  absl::Status CheckKind() const {
    QUARTET_ASSIGN_OR_RETURN(const std::string architecture, file_.Text("general.architecture"));
    if (architecture != "llama") {
      return Error(absl::StrCat("general.architecture is \"", architecture, "\"; \"llama\" can be imported"));
    }
    QUARTET_ASSIGN_OR_RETURN(const std::string tokenizer, file_.Text("tokenizer.ggml.model"));
    if (tokenizer != "gpt2") {
      return Error(absl::StrCat("tokenizer.ggml.model is \"", tokenizer, "\"; \"gpt2\" can be imported"));
    }
    if (file_.tensors().contains("rope_freqs.weight")) {
      return Error("has the tensor rope_freqs.weight: stretched rotary frequencies cannot be imported");
    }
    for (const char* key : {"llama.rope.scaling.type", "llama.expert_count"}) {
      if (file_.Has(key)) return Error(absl::StrCat("has metadata ", key, ": such a model cannot be imported"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ModelConfig> Config() const {
    ModelConfig config;
    config.model_type = "llama";
    const std::pair<const char*, int64_t*> integers[] = {
        {"llama.embedding_length", &config.hidden_size},
        {"llama.feed_forward_length", &config.intermediate_size},
        {"llama.block_count", &config.num_hidden_layers},
        {"llama.attention.head_count", &config.num_attention_heads},
        {"llama.attention.head_count_kv", &config.num_key_value_heads},
        {"llama.context_length", &config.max_position_embeddings},
    };
    for (const auto& [key, value] : integers) {
      QUARTET_ASSIGN_OR_RETURN(*value, file_.Integer(key));
    }
    QUARTET_ASSIGN_OR_RETURN(config.rms_norm_eps, file_.Real("llama.attention.layer_norm_rms_epsilon"));
    if (file_.Has("llama.rope.freq_base")) {
      QUARTET_ASSIGN_OR_RETURN(config.rope_theta, file_.Real("llama.rope.freq_base"));
    }
    if (file_.Has("llama.rope.dimension_count")) {
      QUARTET_ASSIGN_OR_RETURN(config.head_dim, file_.Integer("llama.rope.dimension_count"));
    } else if (config.num_attention_heads > 0) {
      config.head_dim = config.hidden_size / config.num_attention_heads;
    }
    config.vocab_size = std::ssize(tokens_);
    config.tie_word_embeddings = !file_.tensors().contains("output.weight");
    QUARTET_ASSIGN_OR_RETURN(config.bos_token_id, TokenId("bos"));
    QUARTET_ASSIGN_OR_RETURN(config.pad_token_id, TokenId("padding"));
    QUARTET_ASSIGN_OR_RETURN(const std::optional<int64_t> eos, TokenId("eos"));
    if (eos.has_value()) config.eos_token_ids = {*eos};
    return config;
  }

  // Of "bos", "eos", "unknown" or "padding".
  absl::StatusOr<std::optional<int64_t>> TokenId(const std::string& role) const {
    const std::string key = absl::StrCat("tokenizer.ggml.", role, "_token_id");
    if (!file_.Has(key)) return std::nullopt;
    QUARTET_ASSIGN_OR_RETURN(const int64_t id, file_.Integer(key));
    if (id < 0 || id >= std::ssize(tokens_))
      return Error(absl::StrCat(key, " is ", id, "; there are ", tokens_.size()));
    return id;
  }

  absl::StatusOr<std::optional<std::string>> Token(const std::string& role) const {
    QUARTET_ASSIGN_OR_RETURN(const std::optional<int64_t> id, TokenId(role));
    if (!id.has_value()) return std::nullopt;
    return tokens_[*id];
  }

  absl::StatusOr<Json> TokenizerJson() const {
    QUARTET_ASSIGN_OR_RETURN(const std::vector<std::string> merges, file_.Texts("tokenizer.ggml.merges"));
    QUARTET_ASSIGN_OR_RETURN(const std::vector<int64_t> types, file_.Integers("tokenizer.ggml.token_type"));
    QUARTET_ASSIGN_OR_RETURN(const std::optional<std::string> unknown, Token("unknown"));
    QUARTET_ASSIGN_OR_RETURN(const std::optional<std::string> bos, Token("bos"));
    QUARTET_ASSIGN_OR_RETURN(const std::optional<int64_t> bos_id, TokenId("bos"));
    if (types.size() != tokens_.size()) {
      return Error(
          absl::StrCat("tokenizer.ggml.token_type has ", types.size(), " entries for ", tokens_.size(), " tokens"));
    }
    constexpr int64_t kSpecial = 3;
    if (std::set<std::string>(tokens_.begin(), tokens_.end()).size() != tokens_.size()) {
      return Error("tokenizer.ggml.tokens has a token twice");
    }
    Json added = Json::array(), vocabulary = Json::object(), pairs = Json::array();
    for (size_t id = 0; id < tokens_.size(); ++id) {
      vocabulary.get_ref<Json::object_t&>().emplace_back(tokens_[id], id);  // looks for no other of that name
      if (types[id] != kSpecial) continue;
      added.push_back({{"id", id},
                       {"content", tokens_[id]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
    }
    for (const std::string& merge : merges) {
      const size_t space = merge.find(' ');
      if (space == std::string::npos) return Error(absl::StrCat("tokenizer.ggml.merges has \"", merge, "\""));
      pairs.push_back({merge.substr(0, space), merge.substr(space + 1)});
    }
    Json begins = nullptr;
    if (bos.has_value()) {
      const auto part = [&](const char* sequence, int type) {
        return std::pair(Json{{"SpecialToken", {{"id", *bos}, {"type_id", type}}}},
                         Json{{"Sequence", {{"id", sequence}, {"type_id", type}}}});
      };
      const auto [bos_a, a] = part("A", 0);
      const auto [bos_b, b] = part("B", 1);
      begins = {{"type", "TemplateProcessing"},
                {"single", Json::array({bos_a, a})},
                {"pair", Json::array({bos_a, a, bos_b, b})},
                {"special_tokens",
                 {{*bos, {{"id", *bos}, {"ids", Json::array({*bos_id})}, {"tokens", Json::array({*bos})}}}}}};
    }
    const Json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
    Json decoders = Json::array({{{"type", "ByteFallback"}},
                                 {{"type", "Fuse"}},
                                 {{"type", "Replace"}, {"pattern", {{"String", "\xE2\x96\x81"}}}, {"content", " "}},
                                 byte_level});
    int64_t adds_space = 1;
    if (file_.Has("tokenizer.ggml.add_space_prefix")) {
      QUARTET_ASSIGN_OR_RETURN(adds_space, file_.Integer("tokenizer.ggml.add_space_prefix"));
    }
    if (adds_space != 0) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    Json before = byte_level;
    before["add_prefix_space"] = before["trim_offsets"] = false;
    return Json{{"version", "1.0"},
                {"truncation", nullptr},
                {"padding", nullptr},
                {"added_tokens", added},
                {"normalizer", {{"type", "Sequence"}, {"normalizers", Json::array()}}},
                {"pre_tokenizer", before},
                {"post_processor", begins},
                {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
                {"model",
                 {{"type", "BPE"},
                  {"dropout", nullptr},
                  {"unk_token", unknown.has_value() ? Json(*unknown) : Json(nullptr)},
                  {"continuing_subword_prefix", nullptr},
                  {"end_of_word_suffix", nullptr},
                  {"fuse_unk", true},
                  {"byte_fallback", true},
                  {"ignore_merges", false},
                  {"vocab", vocabulary},
                  {"merges", pairs}}}};
  }

  absl::StatusOr<Json> TokenizerConfigJson() const {
    Json config = {
        {"tokenizer_class", "LlamaTokenizer"}, {"add_bos_token", true}, {"add_eos_token", false},
        {"add_prefix_space", nullptr},         {"legacy", true},        {"clean_up_tokenization_spaces", true}};
    for (const auto& [name, role] :
         {std::pair("bos_token", "bos"), std::pair("eos_token", "eos"), std::pair("unk_token", "unknown")}) {
      QUARTET_ASSIGN_OR_RETURN(const std::optional<std::string> token, Token(role));
      if (token.has_value()) config[name] = *token;
    }
    return config;
  }

  const GgufFile& file_;
  std::vector<std::string> tokens_;
};

}  // namespace

absl::Status ImportGguf(const std::string& path, const std::string& target, Dtype dtype) {
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Open(path));
  Importer importer(*file);
  std::string companions = (std::filesystem::temp_directory_path() / "quartet_gguf_XXXXXX").string();
  if (mkdtemp(companions.data()) == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("making ", companions));
  const absl::Cleanup remove_companions = [&] {
    std::error_code ignored;
    std::filesystem::remove_all(companions, ignored);
  };
  QUARTET_RETURN_IF_ERROR(importer.WriteCompanions(companions));
  absl::StatusOr<ModelConfig> config = ReadModelConfig(companions);
  if (!config.ok()) return importer.Error(absl::StrCat("makes no model: ", config.status().message()));
  const ParameterLayout layout = MakeParameterLayout(*config, HeadKind::kVocabulary);
  size_t parameters = 0;
  for (const ParameterGroup& group : layout.groups) parameters += group.parameters.size();
  if (parameters != file->tensors().size()) {
    return importer.Error(
        absl::StrCat("has ", file->tensors().size(), " tensors; a model of its shape has ", parameters));
  }
  const ModelFolderOptions options = {.source = companions, .target = target, .dtype = dtype};
  QUARTET_ASSIGN_OR_RETURN(const auto writer, ModelFolderWriter::Create(*config, layout, options));
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    for (size_t p = 0; p < layout.groups[g].parameters.size(); ++p) {
      QUARTET_ASSIGN_OR_RETURN(std::vector<float> values, importer.Values(*config, layout.groups[g].parameters[p]));
      if (dtype == Dtype::kBF16) RoundToBf16(values);
      QUARTET_RETURN_IF_ERROR(writer->Write(static_cast<int>(g), static_cast<int>(p), values.data()));
    }
  }
  return writer->Finish().status();
}

}  // namespace quartet
