#include "orchestrator/data/conversation.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/tokenizer/unicode/unicode.h"
#include "orchestrator/data/messages.h"

namespace quartet {
namespace {

using Message = ChatMessage;

absl::StatusOr<std::vector<Message>> ReadMessages(const Record& record, const std::string& key,
                                                  const DataConfig& data) {
  const auto list = record.lists.find(key);
  if (list == record.lists.end()) {
    const size_t place = data.input_template().find("{}");
    return std::vector<Message>{
        MakeChatMessage(kUser, absl::StrCat(data.input_template().substr(0, place), record.fields.at(key),
                                            data.input_template().substr(place + 2)))};
  }
  const std::string place = absl::StrCat("field \"", key, "\"");
  const auto error = [&place](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(place, " is a list of messages", what));
  };
  if (!data.apply_chat_template()) return error("; only a chat template writes such: set data.apply_chat_template");
  if (data.input_template() != "{}") return error(", in which data.input_template has no place");
  if (list->second.empty()) return error(" without a message");
  return ReadMessageList(list->second, place);
}

absl::StatusOr<std::vector<Message>> ReadAnswer(const Record& record, const std::string& key, const DataConfig& data) {
  const auto text = record.fields.find(key);
  if (text == record.fields.end()) return ReadMessages(record, key, data);
  return std::vector<Message>{MakeChatMessage(kAssistant, text->second)};
}

// Conversation.later_parts of the messages in a field, which are well-formed.
std::vector<std::string> LaterParts(const Record& record, const std::string& key) {
  std::vector<std::string> parts;
  const auto list = record.lists.find(key);
  if (list == record.lists.end()) return parts;
  for (const auto& message : list->second) {
    const auto content = message.find("content");
    if (content == message.end() || !content->is_array()) continue;
    for (size_t i = 1; i < content->size(); ++i) parts.push_back((*content)[i]["text"].get<std::string>());
  }
  return parts;
}

std::string_view WithoutLeadingSpace(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && IsWhiteSpace(CharAt(text, at))) at += CharBytes(text, at);
  return text.substr(at);
}

// Whether `prompt`, one message of the user where it is a text, stands in a conversation before its last message.
bool Holds(const std::vector<Message>& conversation, const std::vector<Message>& prompt, bool text) {
  if (!text) {
    return conversation.size() > prompt.size() && std::equal(prompt.begin(), prompt.end(), conversation.begin());
  }
  // Rows that have both differ in spaces around the text, which templates strip.
  const std::string text_asked = TextOf(prompt.front());
  const absl::string_view asked = absl::StripAsciiWhitespace(text_asked);
  return std::any_of(conversation.begin(), conversation.end() - 1, [asked](const Message& message) {
    return message["role"] == kUser && absl::StripAsciiWhitespace(TextOf(message)) == asked;
  });
}

absl::Status CheckEndsWithAnswer(const std::vector<Message>& messages, const std::string& field) {
  if (messages.back()["role"] == kAssistant) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the last message of ", field, " is not the assistant's"));
}

// Of a conversation whose last messages are those of `field`.
absl::Status CheckTurns(const std::vector<Message>& messages, const std::string& field) {
  const auto error = [](const auto&... what) { return absl::InvalidArgumentError(absl::StrCat(what...)); };
  if (messages.size() == 1) return error("there is nothing before the answer in ", field);
  for (size_t i = 1; i < messages.size(); ++i) {
    const auto& role = messages[i]["role"].get_ref<const std::string&>();
    if (messages[i - 1]["role"] != role || (role != kUser && role != kAssistant)) continue;
    return error("messages ", i - 1, " and ", i, " (counted from 0) of the conversation that ends in ", field,
                 " are both the ", role, "'s; they must take turns");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Conversation> ReadConversation(const Record& record, const std::string& key, const DataConfig& data) {
  Conversation conversation;
  QUARTET_ASSIGN_OR_RETURN(conversation.messages, ReadMessages(record, key, data));
  conversation.later_parts = LaterParts(record, key);
  if (!data.tools_key().empty()) {
    QUARTET_ASSIGN_OR_RETURN(conversation.tools, ReadTools(record, data.tools_key()));
  }
  return conversation;
}

absl::StatusOr<Conversation> ReadAnswered(const Record& record, const OptionKey& prompt, const OptionKey& answer,
                                          const DataConfig& data) {
  const std::string prompt_field = FieldName(prompt.key, prompt.option);
  const std::string answer_field = FieldName(answer.key, answer.option);
  const bool has_prompt = record.contains(prompt.key), has_answer = record.contains(answer.key);
  if (!has_prompt && !record.lists.contains(answer.key)) {
    return absl::InvalidArgumentError(absl::StrCat("has no field ", prompt_field, "; without it ", answer_field,
                                                   " must be a whole conversation, a list of messages"));
  }
  QUARTET_ASSIGN_OR_RETURN(Conversation conversation,
                           ReadConversation(record, has_prompt ? prompt.key : answer.key, data));
  std::vector<Message>& messages = conversation.messages;
  if (has_prompt && messages.back()["role"] == kAssistant && has_answer) {
    return absl::InvalidArgumentError(absl::StrCat("has two answers: the last message of ", prompt_field,
                                                   " is the assistant's, and there is ", answer_field));
  }
  if (has_prompt && messages.back()["role"] != kAssistant && !has_answer) {
    return absl::InvalidArgumentError(absl::StrCat("has no answer: the last message of ", prompt_field,
                                                   " is not the assistant's, and there is no field ", answer_field));
  }
  if (has_prompt && has_answer) {
    QUARTET_ASSIGN_OR_RETURN(std::vector<Message> answers, ReadAnswer(record, answer.key, data));
    for (std::string& part : LaterParts(record, answer.key)) conversation.later_parts.push_back(std::move(part));
    QUARTET_RETURN_IF_ERROR(CheckEndsWithAnswer(answers, answer_field));
    const bool is_text = record.fields.contains(prompt.key);
    // Beside a text these are hardly what follows it: a conversation that the assistant opens.
    const auto has_user = [](const std::vector<Message>& of) {
      return std::ranges::any_of(of, [](const Message& message) { return message["role"] == kUser; });
    };
    if (Holds(answers, messages, is_text)) {
      messages = std::move(answers);
    } else if (answers.front()["role"] == kAssistant && !(is_text && has_user(answers))) {
      messages.insert(messages.end(), answers.begin(), answers.end());
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(answer_field, " is a whole conversation, which ",
                       is_text ? "does not have " : "does not begin with the messages of ", prompt_field,
                       is_text ? " before its last message" : ""));
    }
  }
  const std::string& last_field = has_answer ? answer_field : prompt_field;
  QUARTET_RETURN_IF_ERROR(CheckEndsWithAnswer(messages, last_field));
  QUARTET_RETURN_IF_ERROR(CheckTurns(messages, last_field));
  return conversation;
}

std::string FieldName(const std::string& key, const std::string& option) {
  return absl::StrCat("\"", key, "\" (", option, ")");
}

std::vector<RowKey> ConversationKeys(const std::string& key, const std::string& option, const DataConfig& data) {
  std::vector<RowKey> keys = {{.name = key, .option = option, .list = true}};
  if (!data.tools_key().empty()) {
    keys.push_back({.name = data.tools_key(), .option = "data.tools_key", .optional = true, .list = true});
  }
  return keys;
}

absl::StatusOr<std::string> ChatText(const Conversation& conversation, size_t count, bool add_generation_prompt,
                                     const Tokenizer& tokenizer) {
  const auto& messages = conversation.messages;
  nlohmann::ordered_json kwargs = nlohmann::ordered_json::object();
  if (!conversation.tools.empty()) kwargs["tools"] = conversation.tools;
  absl::StatusOr<std::string> text = tokenizer.ApplyChatTemplate(
      {messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(count)}, add_generation_prompt, kwargs);
  if (text.ok()) return text;
  return absl::InvalidArgumentError(absl::StrCat(
      "data.apply_chat_template: ", text.status().message(),
      absl::IsFailedPrecondition(text.status()) ? "; data.tokenizer_chat_template names a file of one" : ""));
}

std::string TextOf(const ChatMessage& message) {
  return message["content"].is_string() ? message["content"].get<std::string>() : "";
}

absl::StatusOr<std::string> PromptText(const Conversation& conversation, const DataConfig& data,
                                       const Tokenizer& tokenizer) {
  if (!data.apply_chat_template()) return TextOf(conversation.messages.front());
  return ChatText(conversation, conversation.messages.size(), /*add_generation_prompt=*/true, tokenizer);
}

absl::StatusOr<std::vector<int32_t>> PromptIds(const std::string& text, const DataConfig& data,
                                               const Tokenizer& tokenizer) {
  if (data.apply_chat_template()) return tokenizer.Encode(text, /*add_special_tokens=*/false);
  return tokenizer.EncodePrompt(text);
}

absl::Status CheckOneBos(const Conversation& conversation, const DataConfig& data, const Tokenizer& tokenizer,
                         const std::vector<int32_t>& ids, const std::set<int32_t>& ends) {
  const std::optional<int32_t> known = tokenizer.bos_id();
  if (!known.has_value()) return absl::OkStatus();
  const int32_t bos = *known;
  const auto written = std::ranges::count(ids, bos);
  if (written < 2) return absl::OkStatus();
  const bool chat = data.apply_chat_template();
  const std::string_view input_template =
      std::string_view(data.input_template()).substr(0, data.input_template().find("{}"));
  int64_t in_texts = 0;
  absl::Status error;
  const auto encode = [&tokenizer](std::string_view text) {
    return tokenizer.Encode(WithoutLeadingSpace(text), /*add_special_tokens=*/false);
  };
  const auto begins = [bos](const std::vector<int32_t>& text) { return !text.empty() && text.front() == bos; };
  const auto begins_with_it = [&](const std::string& which, const char* in) {
    return absl::InvalidArgumentError(
        absl::StrCat(which, " begins with \"", tokenizer.Decode({bos}, /*skip_special_tokens=*/false), "\", which the ",
                     chat ? "chat template writes itself" : "tokenizer puts before every text",
                     ": the model would read it twice; leave it out of ", in));
  };
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const Message& message = conversation.messages[i];
    const bool is_answer = message["role"] == kAssistant;
    for (const char* part : {"reasoning_content", "content"}) {
      const auto found = message.find(part);
      if (found == message.end() || !found->is_string()) continue;
      std::string_view row = found->get_ref<const std::string&>();
      QUARTET_ASSIGN_OR_RETURN(const std::vector<int32_t> whole, encode(row));
      in_texts += std::ranges::count(whole, bos);
      const bool has_template = !input_template.empty() && row.starts_with(input_template);
      if (has_template) row.remove_prefix(input_template.size());
      QUARTET_ASSIGN_OR_RETURN(const std::vector<int32_t> own, has_template ? encode(row) : whole);
      if (!error.ok() || !(begins(whole) || begins(own)) || (is_answer && ends.contains(bos))) continue;
      const bool is_content = std::string_view(part) == "content";
      const std::string which =
          chat        ? absl::StrCat(is_content ? "" : absl::StrCat(part, " of "), "message ", i, " (counted from 0)")
          : is_answer ? "the answer"
                      : "the text";
      error = begins_with_it(which, begins(own) ? "the text" : "data.input_template");
    }
  }
  for (const std::string& part : conversation.later_parts) {
    QUARTET_ASSIGN_OR_RETURN(const std::vector<int32_t> own, encode(part));
    if (error.ok() && begins(own)) error = begins_with_it("a part of a message's content", "the text");
  }
  // Else the template leaves it to the texts.
  return written > in_texts ? error : absl::OkStatus();
}

}  // namespace quartet
