#include "core/training/engine/model_folder_check.h"

#include <filesystem>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/model/lora.h"
#include "core/model/lora_options.h"
#include "core/tokenizer/comparison.h"
#include "core/tokenizer/tokenizer.h"

namespace quartet {

HeadKind TrainedHead(std::string_view section) {
  return section == "critic" ? HeadKind::kScalar : HeadKind::kVocabulary;
}

absl::StatusOr<ModelConfig> ReadTrainedModel(const std::string& name, const TrainerConfig& trainer) {
  const std::string& folder = trainer.pretrain();
  const std::optional<LoraOptions> lora = LoraOf(trainer);
  QUARTET_RETURN_IF_ERROR(Prefixed(name + ".pretrain", ReadModelConfig(folder).status()));
  // Whose own errors name the fields of `name`.lora.
  QUARTET_ASSIGN_OR_RETURN(ModelConfig model, ReadTrainedConfig(folder, lora, TrainedHead(name)));
  if (!lora.has_value()) {
    const std::string why =
        absl::StrCat("set ", name, ".lora, as they are, to train them on; without it whole models are trained");
    QUARTET_RETURN_IF_ERROR(Prefixed(name + ".pretrain", RefuseAdapters(model, folder, why)));
  }
  return model;
}

absl::StatusOr<int64_t> ReadVocabulary(const std::string& model_folder, const ModelConfig& config) {
  QUARTET_ASSIGN_OR_RETURN(const std::string folder, TokenizerFolder(model_folder));
  const std::string path = folder + "/tokenizer.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return config.vocab_size;
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(folder));
  if (tokenizer->vocab_size() <= config.vocab_size) return tokenizer->vocab_size();
  return absl::InvalidArgumentError(absl::StrCat(
      "tokenizer of another vocabulary size than the model: ", path, " has ", tokenizer->vocab_size(),
      " token ids, but vocab_size in ", ConfigPath(config, model_folder), " is ", config.vocab_size,
      "; the model needs at least as many as the tokenizer. Use the tokenizer that the model was trained with."));
}

absl::StatusOr<int64_t> ReadVocabulary(const std::string& role, const std::string& folder, const ModelConfig& config,
                                       const std::string& actor_folder) {
  QUARTET_ASSIGN_OR_RETURN(const int64_t own, ReadVocabulary(folder, config));
  if (actor_folder.empty() || actor_folder == folder) return own;
  QUARTET_ASSIGN_OR_RETURN(const ModelConfig actor_config, ReadModelConfig(actor_folder));
  QUARTET_ASSIGN_OR_RETURN(const std::string own_tokenizer, TokenizerFolder(folder));
  QUARTET_ASSIGN_OR_RETURN(const std::string actors_tokenizer, TokenizerFolder(actor_folder));
  QUARTET_ASSIGN_OR_RETURN(const std::string difference, DescribeTokenizerDifference(own_tokenizer, actors_tokenizer));
  if (difference.empty()) {
    QUARTET_ASSIGN_OR_RETURN(const int64_t tokens, ReadVocabulary(actor_folder, actor_config));
    if (tokens <= config.vocab_size) return tokens;
    return absl::InvalidArgumentError(absl::StrCat(
        "the ", role, " ", folder, " has a vocabulary of ", config.vocab_size, " tokens, but the actor ", actor_folder,
        " one of ", tokens, "; it is given the actor's token ids, so it must have at least as many."));
  }
  return absl::InvalidArgumentError(absl::StrCat("the ", role, " ", folder, " has another tokenizer than the actor ",
                                                 actor_folder, ": ", difference,
                                                 ". It is given the actor's token ids, which would be other texts to "
                                                 "it; it must be a model that was trained with the "
                                                 "actor's tokenizer."));
}

}  // namespace quartet
