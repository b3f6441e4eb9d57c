#include "orchestrator/data/example_maker.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

std::string LastAlone(const std::string& section) {
  return absl::StrCat("; without ", section, ".multiturn the last of the assistant's messages alone is trained on");
}

std::string WithoutNewlinesAtEnd(std::string text) {
  while (absl::EndsWith(text, "\n")) text.pop_back();
  return text;
}

}  // namespace

// An example that grows.
struct ExampleMaker::Example {
  std::vector<int32_t> ids;
  std::vector<bool> trained;

  void Add(const std::vector<int32_t>& more, bool are_trained) {
    ids.insert(ids.end(), more.begin(), more.end());
    trained.resize(ids.size(), are_trained);
  }
};

absl::StatusOr<std::unique_ptr<ExampleMaker>> ExampleMaker::Create(ExampleOptions options, const Tokenizer& tokenizer) {
  std::unique_ptr<ExampleMaker> maker(new ExampleMaker(std::move(options), tokenizer));
  QUARTET_RETURN_IF_ERROR(maker->ReadEnd());
  return maker;
}

absl::Status ExampleMaker::ReadEnd() {
  const std::string option = absl::StrCat(options_.section, ".end_token");
  for (const int64_t id : options_.model_end_ids) ends_.insert(static_cast<int32_t>(id));
  if (!options_.end_token.has_value()) {
    if (options_.model_end_ids.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          options_.model_folder,
          ": the config.json of the model has no eos_token_id, and answers could not be ended: set it, or ", option));
    }
    end_token_ = static_cast<int32_t>(options_.model_end_ids.front());
  } else if (!options_.end_token->empty()) {
    end_token_ = tokenizer_.TokenToId(*options_.end_token);
    if (!end_token_.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(option, ": \"", *options_.end_token,
                                                     "\" is no token of the vocabulary of ", options_.model_folder,
                                                     "; allowed: the text of one token, or \"\" for none"));
    }
    ends_.insert(*end_token_);
  }
  return absl::OkStatus();
}

absl::StatusOr<ExampleMaker::Example> ExampleMaker::OfTexts(const Conversation& conversation) const {
  Example example;
  QUARTET_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt,
                           PromptIds(TextOf(conversation.messages.front()), options_.data, tokenizer_));
  QUARTET_ASSIGN_OR_RETURN(const std::vector<int32_t> answer,
                           tokenizer_.Encode(TextOf(conversation.messages.back()), false));
  example.Add(prompt, false);
  example.Add(answer, true);
  End(answer, &example);
  return example;
}

absl::StatusOr<ExampleMaker::Example> ExampleMaker::OfTurns(const Conversation& conversation) const {
  Example example;
  std::string done;  // the text of the example so far
  const auto& messages = conversation.messages;
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool last = i + 1 == messages.size();
    if (messages[i]["role"] != kAssistant || !(last || options_.multiturn)) continue;
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
    QUARTET_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt_ids, PromptIds(prompt, options_.data, tokenizer_));
    if (!absl::StartsWith(prompt, done) ||
        !std::equal(example.ids.begin(), example.ids.end(), prompt_ids.begin(),
                    prompt_ids.begin() + std::min(prompt_ids.size(), example.ids.size()))) {
      return error(
          absl::StrCat("does not follow the turns before it as they would be trained on: the template, or "
                       "the tokenizer, writes them otherwise once the conversation goes on",
                       LastAlone(options_.section)));
    }
    example.Add({prompt_ids.begin() + static_cast<int64_t>(example.ids.size()), prompt_ids.end()}, false);
    const std::string answer = WithoutNewlinesAtEnd(turn.substr(prompt.size()));
    QUARTET_ASSIGN_OR_RETURN(const std::vector<int32_t> answer_ids, tokenizer_.Encode(answer, false));
    example.Add(answer_ids, true);
    if (last) {
      End(answer_ids, &example);
    } else if (end_token_.has_value() && !Ends(answer_ids)) {
      return error(absl::StrCat("is not ended by the template with an end token", LastAlone(options_.section)));
    }
    done = prompt + answer;
  }
  return example;
}

void ExampleMaker::End(const std::vector<int32_t>& answer, Example* example) const {
  if (end_token_.has_value() && !Ends(answer)) example->Add({*end_token_}, true);
}

absl::StatusOr<TokenSequence> ExampleMaker::Make(const Conversation& conversation) const {
  const absl::StatusOr<Example> made =
      options_.data.apply_chat_template() ? OfTurns(conversation) : OfTexts(conversation);
  if (!made.ok()) return absl::InvalidArgumentError(made.status().message());
  if (!made->trained.empty() && made->trained.front()) return absl::InvalidArgumentError("the prompt has no token");
  if (made->trained.empty() || !made->trained.back()) return absl::InvalidArgumentError("the answer has no token");
  QUARTET_RETURN_IF_ERROR(CheckOneBos(conversation, options_.data, tokenizer_, made->ids, ends_));
  if (static_cast<int64_t>(made->ids.size()) > options_.max_len) {
    return absl::OutOfRangeError(absl::StrCat("prompt and response have ", made->ids.size(), " tokens, more than ",
                                              options_.model, ".max_len (", options_.max_len, ")"));
  }
  TokenSequence example;
  example.mutable_ids()->Add(made->ids.begin(), made->ids.end());
  example.mutable_action_mask()->Add(made->trained.begin(), made->trained.end());
  return example;
}

}  // namespace quartet
