#include "orchestrator/data/prompts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/config/services.h"
#include "core/data/json.h"
#include "core/data/label.h"
#include "core/rewards/labels/labels.h"
#include "orchestrator/data/conversation.h"
#include "orchestrator/data/dataset_options.h"
#include "orchestrator/data/reward_sources.h"

namespace quartet {
namespace {

// Which fields of a row are what.
struct PromptKeys {
  std::string input, label, label_extract;
};

std::vector<RowKey> RowKeys(const PromptKeys& keys, const RunConfig& config) {
  std::vector<RowKey> rows = ConversationKeys(keys.input, "data.input_key", config.data());
  const bool compares = NeedsLabels(config.reward());
  rows.push_back({.name = keys.label,
                  .option = compares ? "data.label_key: the rules of the reward compare with it"
                                     : "data.label_key; data.label_required=false where rows may lack it",
                  .optional = !compares && !config.data().label_required(),
                  .as_json = true});  // what the sources for the prompt read is looked at in ReadPrompt
  rows.push_back({.name = config.data().source_key(), .option = "data.source_key", .optional = true});
  const bool is_read =
      ReadsPrompts(config.reward()) || HasAgent(config) || !config.algorithm().advantage_command().command().empty();
  if (is_read) rows.push_back({.rest = true});
  return rows;
}

// OUT_OF_RANGE: too long.
absl::StatusOr<PromptRecord> ReadPrompt(const Record& record, const PromptKeys& keys, const RunConfig& config,
                                        const LabelReader& labels, const Tokenizer& tokenizer) {
  const DataConfig& data = config.data();
  PromptRecord prompt;
  QUARTET_ASSIGN_OR_RETURN(const Conversation conversation, ReadConversation(record, keys.input, data));
  if (conversation.messages.back()["role"] == kAssistant) {
    return absl::InvalidArgumentError(absl::StrCat("the last message of ", FieldName(keys.input, "data.input_key"),
                                                   " is the assistant's; a prompt ends before the answer"));
  }
  QUARTET_ASSIGN_OR_RETURN(prompt.text, PromptText(conversation, data, tokenizer));
  QUARTET_ASSIGN_OR_RETURN(prompt.ids, PromptIds(prompt.text, data, tokenizer));
  QUARTET_RETURN_IF_ERROR(CheckOneBos(conversation, data, tokenizer, prompt.ids));
  const auto source = record.fields.find(data.source_key());
  prompt.source = source == record.fields.end() ? record.source : source->second;
  if (record.written_as_json.contains(keys.label) && !TakesJsonLabels(config.reward(), prompt.source)) {
    return absl::InvalidArgumentError(absl::StrCat("field ", FieldName(keys.label, "data.label_key"),
                                                   " is a list or an object; a string, a number or a boolean is "
                                                   "allowed, since no source of the reward that is for "
                                                   "the prompt reads JSON"));
  }
  if (auto label = record.fields.find(keys.label); label != record.fields.end()) {
    QUARTET_ASSIGN_OR_RETURN(prompt.label, ExtractLabel(label->second, keys.label_extract));
  }
  prompt.row = record.rest;
  if (HasAgent(config)) prompt.messages = PrintExactJson(nlohmann::ordered_json(conversation.messages));
  prompt.place = record.place;
  if (prompt.ids.empty()) return absl::InvalidArgumentError("the prompt has no token");
  if (static_cast<int64_t>(prompt.ids.size()) > data.prompt_max_len()) {
    return absl::OutOfRangeError(absl::StrCat("the prompt has ", prompt.ids.size(),
                                              " tokens, more than data.prompt_max_len (", data.prompt_max_len(), ")"));
  }
  QUARTET_RETURN_IF_ERROR(labels.Check(prompt.label, prompt.source));
  return prompt;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Prompts>> Prompts::Open(const RunConfig& config, const Tokenizer& tokenizer,
                                                       const RowProgress& progress) {
  QUARTET_RETURN_IF_ERROR(CheckReasoningDelimiters(config.reward(), tokenizer));
  const DataConfig& data = config.data();
  const PromptKeys keys = {data.input_key(), data.label_key(), data.label_extract()};
  std::unique_ptr<Prompts> prompts(new Prompts());
  QUARTET_ASSIGN_OR_RETURN(LabelReader reader, LabelReader::Create(config));
  auto make = [keys, config, labels = std::make_shared<const LabelReader>(std::move(reader)), &tokenizer,
               sources = &prompts->sources_](const Record& record) -> absl::StatusOr<PromptRecord> {
    QUARTET_ASSIGN_OR_RETURN(PromptRecord prompt, ReadPrompt(record, keys, config, *labels, tokenizer));
    sources->Count(&prompt);
    return prompt;
  };
  DatasetOptions options = DatasetOptionsOf(config);
  options.option = "data.prompt_data";
  options.paths.assign(data.prompt_data().begin(), data.prompt_data().end());
  options.weights.assign(data.prompt_data_probs().begin(), data.prompt_data_probs().end());
  options.max_rows = data.max_samples();
  options.keys = RowKeys(keys, config);
  QUARTET_ASSIGN_OR_RETURN(prompts->made_, MadeRows<PromptRecord>::Open(options, std::move(make), progress));
  return prompts;
}

uint64_t HashItem(const PromptRecord& prompt, uint64_t seed) {
  return HashBytes({reinterpret_cast<const char*>(prompt.ids.data()), prompt.ids.size() * sizeof(prompt.ids[0])}, seed);
}

void PromptSources::Count(PromptRecord* prompt) {
  const bool fits = names_.contains(prompt->source) || names_.size() < kMost;
  prompt->metrics_source = fits ? prompt->source : "other";
  names_.insert(prompt->metrics_source);
}

absl::StatusOr<std::vector<std::shared_ptr<const PromptRecord>>> Prompts::Take(int64_t begin, int64_t count) {
  QUARTET_ASSIGN_OR_RETURN(std::vector<PromptRecord> made, made_->Take(begin, count));
  std::vector<std::shared_ptr<const PromptRecord>> prompts;
  for (PromptRecord& prompt : made) prompts.push_back(std::make_shared<const PromptRecord>(std::move(prompt)));
  return prompts;
}

absl::StatusOr<HeldOutPrompts> ReadHeldOutPrompts(const EvalSet& set, const std::string& option,
                                                  const RunConfig& config, const Tokenizer& tokenizer,
                                                  const RowProgress& progress) {
  QUARTET_RETURN_IF_ERROR(CheckReasoningDelimiters(config.reward(), tokenizer));
  const PromptKeys keys = {set.input_key(), set.label_key(), set.label_extract()};
  DatasetOptions options = DatasetOptionsOf(config);
  options.option = option;
  options.paths = {set.data()};
  options.max_rows = set.max_samples();
  options.checked_rows = 0;  // all
  options.keys = RowKeys(keys, config);
  QUARTET_ASSIGN_OR_RETURN(const LabelReader labels, LabelReader::Create(config));
  HeldOutPrompts held_out;
  PromptSources sources;
  const auto read = [&](const Record& record) -> absl::Status {
    QUARTET_ASSIGN_OR_RETURN(PromptRecord prompt, ReadPrompt(record, keys, config, labels, tokenizer));
    sources.Count(&prompt);
    held_out.prompts.push_back(std::move(prompt));
    return absl::OkStatus();
  };
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<Dataset> rows, Dataset::Open(std::move(options), read, progress));
  held_out.description = DescribeRows("prompts", *rows);
  held_out.files = RowInputs(*rows);
  return held_out;
}

}  // namespace quartet
