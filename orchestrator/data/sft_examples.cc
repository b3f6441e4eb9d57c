#include "orchestrator/data/sft_examples.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "orchestrator/data/conversation.h"
#include "orchestrator/data/dataset_options.h"

namespace quartet {
namespace {

constexpr char kPromptOption[] = "sft.input_key";
constexpr char kAnswerOption[] = "sft.output_key";

// Prompt and answer of a row.
absl::StatusOr<Conversation> ReadExample(const Record& record, const SftConfig& sft, const DataConfig& data) {
  const std::string prompt = FieldName(sft.input_key(), kPromptOption);
  const std::string answer = FieldName(sft.output_key(), kAnswerOption);
  QUARTET_ASSIGN_OR_RETURN(Conversation conversation, ReadConversation(record, sft.input_key(), data));
  const bool has_answer = record.contains(sft.output_key());
  if (conversation.messages.back().role == kAssistant) {
    if (!has_answer) return conversation;
    return absl::InvalidArgumentError(absl::StrCat("has two answers: the last message of ", prompt, " and ", answer));
  }
  if (!has_answer) {
    return absl::InvalidArgumentError(absl::StrCat("has no answer: the last message of ", prompt,
                                                   " is not the assistant's, and there is no field ", answer));
  }
  QUARTET_RETURN_IF_ERROR(AppendAnswer(record, sft.output_key(), kAnswerOption, data, &conversation));
  return conversation;
}

}  // namespace

SftExamples::SftExamples() = default;
SftExamples::~SftExamples() = default;

absl::StatusOr<std::unique_ptr<SftExamples>> SftExamples::Open(
    const RunConfig& config, const Tokenizer& tokenizer, const std::vector<int64_t>& model_end_ids,
    const std::function<void(int64_t done, int64_t all)>& progress) {
  std::unique_ptr<SftExamples> examples(new SftExamples());
  const SftConfig& sft = config.sft();
  examples->config_ = config;
  ExampleOptions example = {.data = config.data(),
                            .section = "sft",
                            .multiturn = sft.multiturn(),
                            .model = "actor",
                            .model_folder = config.actor().pretrain(),
                            .max_len = config.actor().max_len(),
                            .model_end_ids = model_end_ids};
  if (sft.has_end_token()) example.end_token = sft.end_token();
  QUARTET_ASSIGN_OR_RETURN(examples->maker_, ExampleMaker::Create(std::move(example), tokenizer));
  DatasetOptions options = DatasetOptionsOf(config);
  options.option = "sft.data";
  options.paths.assign(sft.data().begin(), sft.data().end());
  options.keys = ConversationKeys(sft.input_key(), kPromptOption, config.data());
  // Messages may have the answer.
  options.keys.push_back(
      {.name = sft.output_key(), .option = kAnswerOption, .list = true, .spared_by = sft.input_key()});
  const auto check = [&examples](const Record& record) {
    const absl::StatusOr<TokenSequence> example = examples->Make(record);
    if (example.ok() && examples->first_.ids().empty()) examples->first_ = *example;
    return example.status();
  };
  QUARTET_ASSIGN_OR_RETURN(examples->dataset_, Dataset::Open(std::move(options), check, progress));
  return examples;
}

absl::StatusOr<TokenSequence> SftExamples::Make(const Record& record) const {
  // Whatever is wrong with a row, it is not well-formed, but for one that is too long.
  const absl::StatusOr<Conversation> conversation = ReadExample(record, config_.sft(), config_.data());
  if (!conversation.ok()) return absl::InvalidArgumentError(conversation.status().message());
  return maker_->Make(*conversation);
}

absl::StatusOr<std::vector<TokenSequence>> SftExamples::Take(int64_t begin, int64_t count) {
  std::vector<TokenSequence> examples;
  QUARTET_RETURN_IF_ERROR(dataset_->Take(begin, count, [&](const Record& record) -> absl::Status {
    QUARTET_ASSIGN_OR_RETURN(TokenSequence example, Make(record));
    examples.push_back(std::move(example));
    return absl::OkStatus();
  }));
  return examples;
}

}  // namespace quartet
