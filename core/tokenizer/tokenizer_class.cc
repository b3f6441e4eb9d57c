#include "core/tokenizer/tokenizer_class.h"

#include <utility>

#include "absl/status/status.h"
#include "core/data/json.h"

namespace quartet {
namespace {

constexpr TokenizerClass kTokenizerClasses[] = {
    {"LlamaTokenizer", "<s>", "</s>", "<unk>", nullptr, true},
    {"CodeLlamaTokenizer", "<s>", "</s>", "<unk>", nullptr, true},
    {"GemmaTokenizer", "<bos>", "<eos>", "<unk>", "<pad>", true},
    {"CohereTokenizer", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", nullptr, true},
    {"GPTNeoXTokenizer", "<|endoftext|>", "<|endoftext|>", "<|endoftext|>", nullptr, false},
    {"GPT2Tokenizer", "<|endoftext|>", "<|endoftext|>", "<|endoftext|>", nullptr, std::nullopt},
    {"Qwen2Tokenizer", nullptr, "<|endoftext|>", "<|endoftext|>", "<|endoftext|>", std::nullopt},
};
// What AutoTokenizer takes by the model's type where no class is named.
constexpr std::pair<std::string_view, std::string_view> kClassOfModel[] = {
    {"llama", "LlamaTokenizer"}, {"mistral", "LlamaTokenizer"}, {"qwen2", "Qwen2Tokenizer"},
    {"qwen3", "Qwen2Tokenizer"}, {"granite", "GPT2Tokenizer"},  {"olmo2", "GPTNeoXTokenizer"}};

}  // namespace

absl::StatusOr<TokenizerClass> FindTokenizerClass(const std::string& folder, const nlohmann::json& tokenizer_config) {
  std::string name;
  const auto take = [&](const nlohmann::json& object) {
    const auto found = object.find("tokenizer_class");
    if (name.empty() && found != object.end() && found->is_string()) name = found->get<std::string>();
  };
  take(tokenizer_config);
  if (name.empty()) {
    const auto model = ReadJsonFile(folder + "/config.json", kMaxConfigBytes);
    if (!model.ok() && !absl::IsNotFound(model.status())) return model.status();
    if (model.ok() && model->is_object()) {
      take(*model);
      for (const auto& [type, its_class] : kClassOfModel) {
        if (name.empty() && model->contains("model_type") && (*model)["model_type"] == type) name = its_class;
      }
    }
  }
  if (name.ends_with("Fast")) name.erase(name.size() - 4);
  for (const TokenizerClass& known : kTokenizerClasses) {
    if (known.name == name) return known;
  }
  return TokenizerClass();
}

}  // namespace quartet
