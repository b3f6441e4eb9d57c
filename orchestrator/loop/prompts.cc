#include "orchestrator/loop/prompts.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/base/random.h"
#include "core/base/status_macros.h"
#include "core/data/label.h"
#include "orchestrator/loop/conversation.h"

namespace quartet {
namespace {

constexpr uint64_t kShufflePurpose = 1;

absl::StatusOr<PromptRecord> ReadPrompt(const Record& record, const DataConfig& data, const Tokenizer& tokenizer) {
  PromptRecord prompt;
  QUARTET_ASSIGN_OR_RETURN(const std::vector<Tokenizer::Message> conversation,
                           ReadConversation(record, data.input_key(), data));
  if (conversation.back().role == kAssistant) {
    return absl::InvalidArgumentError(
        absl::StrCat("the last message of \"", data.input_key(),
                     "\" (data.input_key) is the assistant's; a prompt ends before the answer"));
  }
  QUARTET_ASSIGN_OR_RETURN(prompt.text, PromptText(conversation, data, tokenizer));
  QUARTET_ASSIGN_OR_RETURN(prompt.ids, PromptIds(prompt.text, data, tokenizer));
  return prompt;
}

}  // namespace

absl::StatusOr<std::vector<PromptRecord>> LoadPrompts(const JsonlFile& file, const DataConfig& data,
                                                      int64_t max_samples, bool label_required,
                                                      const Tokenizer& tokenizer) {
  const std::string& label_key = data.label_key();
  QUARTET_ASSIGN_OR_RETURN(std::vector<Record> records,
                           ReadJsonl(file, {{.name = data.input_key(), .option = "data.input_key", .list = true},
                                            {.name = label_key,
                                             .option = "data.label_key: the rules of the reward compare with it",
                                             .optional = !label_required}}));
  if (max_samples > 0 && static_cast<int64_t>(records.size()) > max_samples) records.resize(max_samples);
  std::vector<PromptRecord> prompts;
  prompts.reserve(records.size());
  for (const Record& record : records) {
    absl::StatusOr<PromptRecord> read = ReadPrompt(record, data, tokenizer);
    if (!read.ok()) return AtLine(file, record.line, absl::InvalidArgumentError(read.status().message()));
    PromptRecord prompt = *std::move(read);
    if (auto label = record.fields.find(label_key); label != record.fields.end()) {
      absl::StatusOr<std::string> extracted = ExtractLabel(label->second, data.label_extract());
      if (!extracted.ok()) return AtLine(file, record.line, extracted.status());
      prompt.label = *std::move(extracted);
    }
    if (prompt.ids.empty()) {
      return AtLine(file, record.line, absl::InvalidArgumentError("the prompt has no token"));
    }
    if (static_cast<int64_t>(prompt.ids.size()) > data.prompt_max_len()) {
      return AtLine(file, record.line,
                    absl::InvalidArgumentError(absl::StrCat("the prompt has ", prompt.ids.size(),
                                                            " tokens, more than data.prompt_max_len (",
                                                            data.prompt_max_len(), ")")));
    }
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

std::vector<int64_t> PromptOrder::Take(int64_t begin, int64_t count) {
  std::vector<int64_t> indices;
  indices.reserve(count);
  for (int64_t i = begin; i < begin + count; ++i) {
    if (i / prompts_ != epoch_) {
      epoch_ = i / prompts_;
      permutation_.resize(prompts_);
      std::iota(permutation_.begin(), permutation_.end(), 0);
      Random::Of({seed_, kShufflePurpose, static_cast<uint64_t>(epoch_)}).Shuffle(permutation_);
    }
    indices.push_back(permutation_[i % prompts_]);
  }
  return indices;
}

}  // namespace quartet
