#include "orchestrator/data/sft_examples.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "orchestrator/data/conversation.h"
#include "orchestrator/data/dataset_options.h"

namespace quartet {
namespace {

constexpr char kLastAlone[] = "; without sft.multiturn the last of the assistant's messages alone is trained on";

// How answers end.
struct AnswerEnd {
  std::optional<int32_t> token;  // put behind what ends in none of `ends`
  std::set<int32_t> ends;

  bool Ends(const std::vector<int32_t>& ids) const { return !ids.empty() && ends.contains(ids.back()); }
};

absl::StatusOr<AnswerEnd> ReadAnswerEnd(const RunConfig& config, const Tokenizer& tokenizer,
                                        const std::vector<int64_t>& model_end_ids) {
  const SftConfig& sft = config.sft();
  AnswerEnd end;
  for (const int64_t id : model_end_ids) end.ends.insert(static_cast<int32_t>(id));
  if (!sft.has_end_token()) {
    if (model_end_ids.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(config.actor().pretrain(),
                       "/config.json: eos_token_id is missing; answers could not be ended: set it, or sft.end_token"));
    }
    end.token = static_cast<int32_t>(model_end_ids.front());
  } else if (!sft.end_token().empty()) {
    end.token = tokenizer.TokenToId(sft.end_token());
    if (!end.token.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("sft.end_token: \"", sft.end_token(),
                                                     "\" is no token of the vocabulary of ", config.actor().pretrain(),
                                                     "; allowed: the text of one token, or \"\" for none"));
    }
    end.ends.insert(*end.token);
  }
  return end;
}

// An example that grows.
struct Example {
  std::vector<int32_t> ids;
  std::vector<bool> trained;

  void Add(const std::vector<int32_t>& more, bool are_trained) {
    ids.insert(ids.end(), more.begin(), more.end());
    trained.resize(ids.size(), are_trained);
  }
};

std::string WithoutNewlinesAtEnd(std::string text) {
  while (absl::EndsWith(text, "\n")) text.pop_back();
  return text;
}

class ExampleMaker {
 public:
  ExampleMaker(const RunConfig& config, const Tokenizer& tokenizer, AnswerEnd end)
      : sft_(config.sft()), data_(config.data()), tokenizer_(tokenizer), end_(std::move(end)) {}

  absl::StatusOr<Example> Make(const Record& record) const {
    QUARTET_ASSIGN_OR_RETURN(Conversation conversation, ReadConversation(record, sft_.input_key(), data_));
    const auto answer = record.fields.find(sft_.output_key());
    const bool has_messages = record.lists.contains(sft_.output_key());
    const bool has_answer = answer != record.fields.end() || has_messages;
    if (conversation.messages.back().role != kAssistant) {
      if (!has_answer) {
        return absl::InvalidArgumentError(absl::StrCat("has no answer: the last message of \"", sft_.input_key(),
                                                       "\" (sft.input_key) is not the assistant's, and there is no "
                                                       "field \"",
                                                       sft_.output_key(), "\" (sft.output_key)"));
      }
      if (has_messages) {
        QUARTET_ASSIGN_OR_RETURN(const Conversation messages, ReadConversation(record, sft_.output_key(), data_));
        if (messages.messages.back().role != kAssistant) {
          return absl::InvalidArgumentError(
              absl::StrCat("the last message of \"", sft_.output_key(), "\" (sft.output_key) is not the assistant's"));
        }
        conversation.messages.insert(conversation.messages.end(), messages.messages.begin(), messages.messages.end());
      } else {
        conversation.messages.push_back({kAssistant, answer->second});
      }
    } else if (has_answer) {
      return absl::InvalidArgumentError(absl::StrCat("has two answers: the last message of \"", sft_.input_key(),
                                                     "\" (sft.input_key) and \"", sft_.output_key(),
                                                     "\" (sft.output_key)"));
    }
    return data_.apply_chat_template() ? OfTurns(conversation) : OfTexts(conversation);
  }

 private:
  absl::StatusOr<Example> OfTexts(const Conversation& conversation) const {
    Example example;
    QUARTET_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt,
                             PromptIds(conversation.messages.front().content, data_, tokenizer_));
    QUARTET_ASSIGN_OR_RETURN(const std::vector<int32_t> answer,
                             tokenizer_.Encode(conversation.messages.back().content, false));
    example.Add(prompt, false);
    example.Add(answer, true);
    End(answer, &example);
    return example;
  }

  absl::StatusOr<Example> OfTurns(const Conversation& conversation) const {
    Example example;
    std::string done;  // the text of the example so far
    const auto& messages = conversation.messages;
    for (size_t i = 0; i < messages.size(); ++i) {
      const bool last = i + 1 == messages.size();
      if (messages[i].role != kAssistant || !(last || sft_.multiturn())) continue;
      const auto error = [&](const std::string& what) {
        return absl::InvalidArgumentError(
            absl::StrCat("data.apply_chat_template: the assistant's message ", i, " (counted from 0) ", what));
      };
      QUARTET_ASSIGN_OR_RETURN(const std::string prompt, ChatText(conversation, i, true, tokenizer_));
      QUARTET_ASSIGN_OR_RETURN(const std::string turn, ChatText(conversation, i + 1, false, tokenizer_));
      if (!absl::StartsWith(turn, prompt)) {
        return error(
            "is not written behind the prompt that generation would have; the template must open the "
            "assistant's turn in both alike");
      }
      // The prompt of this turn as generation would have it, whose beginning is the turns before.
      QUARTET_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt_ids, PromptIds(prompt, data_, tokenizer_));
      if (!absl::StartsWith(prompt, done) ||
          !std::equal(example.ids.begin(), example.ids.end(), prompt_ids.begin(),
                      prompt_ids.begin() + std::min(prompt_ids.size(), example.ids.size()))) {
        return error(
            absl::StrCat("does not follow the turns before it as they would be trained on: the template, or "
                         "the tokenizer, writes them otherwise once the conversation goes on",
                         kLastAlone));
      }
      example.Add({prompt_ids.begin() + static_cast<int64_t>(example.ids.size()), prompt_ids.end()}, false);
      const std::string answer = WithoutNewlinesAtEnd(turn.substr(prompt.size()));
      QUARTET_ASSIGN_OR_RETURN(const std::vector<int32_t> answer_ids, tokenizer_.Encode(answer, false));
      example.Add(answer_ids, true);
      if (last) {
        End(answer_ids, &example);
      } else if (end_.token.has_value() && !end_.Ends(answer_ids)) {
        return error(absl::StrCat("is not ended by the template with an end token", kLastAlone));
      }
      done = prompt + answer;
    }
    return example;
  }

  void End(const std::vector<int32_t>& answer, Example* example) const {
    if (end_.token.has_value() && !end_.Ends(answer)) example->Add({*end_.token}, true);
  }

  const SftConfig& sft_;
  const DataConfig& data_;
  const Tokenizer& tokenizer_;
  const AnswerEnd end_;
};

// OUT_OF_RANGE: too long.
absl::Status Check(const Example& example, const RunConfig& config) {
  if (!example.trained.empty() && example.trained.front()) return absl::InvalidArgumentError("the prompt has no token");
  if (example.trained.empty() || !example.trained.back()) return absl::InvalidArgumentError("the answer has no token");
  if (example.ids.size() <= static_cast<size_t>(config.actor().max_len())) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("prompt and response have ", example.ids.size(),
                                            " tokens, more than actor.max_len (", config.actor().max_len(), ")"));
}

}  // namespace

struct SftExamples::Maker : ExampleMaker {
  using ExampleMaker::ExampleMaker;
};

SftExamples::SftExamples() = default;
SftExamples::~SftExamples() = default;

absl::StatusOr<std::unique_ptr<SftExamples>> SftExamples::Open(
    const RunConfig& config, const Tokenizer& tokenizer, const std::vector<int64_t>& model_end_ids,
    const std::function<void(int64_t done, int64_t all)>& progress) {
  std::unique_ptr<SftExamples> examples(new SftExamples());
  QUARTET_ASSIGN_OR_RETURN(AnswerEnd end, ReadAnswerEnd(config, tokenizer, model_end_ids));
  examples->config_ = config;
  examples->maker_ = std::make_unique<Maker>(examples->config_, tokenizer, std::move(end));
  const SftConfig& sft = config.sft();
  DatasetOptions options = DatasetOptionsOf(config);
  options.option = "sft.data";
  options.paths.assign(sft.data().begin(), sft.data().end());
  options.keys = ConversationKeys(sft.input_key(), "sft.input_key", config.data());
  // Messages may have the answer.
  options.keys.push_back(
      {.name = sft.output_key(), .option = "sft.output_key", .list = true, .spared_by = sft.input_key()});
  const auto check = [&examples](const Record& record) {
    const absl::StatusOr<TokenSequence> example = examples->Make(record);
    if (example.ok() && examples->first_.ids().empty()) examples->first_ = *example;
    return example.status();
  };
  QUARTET_ASSIGN_OR_RETURN(examples->dataset_, Dataset::Open(std::move(options), check, progress));
  return examples;
}

absl::StatusOr<TokenSequence> SftExamples::Make(const Record& record) const {
  const absl::StatusOr<Example> made = maker_->Make(record);
  if (!made.ok()) return absl::InvalidArgumentError(made.status().message());
  QUARTET_RETURN_IF_ERROR(Check(*made, config_));
  TokenSequence example;
  example.mutable_ids()->Add(made->ids.begin(), made->ids.end());
  example.mutable_action_mask()->Add(made->trained.begin(), made->trained.end());
  return example;
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
