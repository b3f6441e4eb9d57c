#include "core/rewards/reply_json.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/errors/shown.h"
#include "core/rewards/token_rewards.h"

namespace quartet {

using nlohmann::json;

constexpr absl::string_view kRewardKeys[] = {"reward", "score", "token_rewards", "extra_logs", "error", "id"};

json ToJson(const Answer& answer, bool with_tokens) {
  json object = {{"query", answer.query},        {"prompt", answer.prompt}, {"response", answer.response},
                 {"label", answer.label},        {"row", RowOf(answer)},    {"source", answer.source},
                 {"truncated", answer.truncated}};
  if (!answer.messages.empty()) object["messages"] = MessagesOf(answer);
  if (!with_tokens) return object;
  object["token_ids"] = answer.token_ids;
  object["token_texts"] = answer.token_texts;
  return object;
}

json RowOf(const Answer& answer) {
  absl::StatusOr<json> row = ParseExactJson(answer.row, "the row");
  return row.ok() && row->is_object() ? *std::move(row) : json::object();
}

json MessagesOf(const Answer& answer) {
  absl::StatusOr<json> messages = ParseExactJson(answer.messages, "the messages");
  return messages.ok() && messages->is_array() ? *std::move(messages) : json::array();
}

namespace {

// Numbers that JSON has no words for, as programs write them all the same: NaN, -Infinity, 1e400, .5.
bool IsOddNumber(std::string_view word) {
  const std::string_view digits = word.substr(word.find_first_not_of("+-") == 1 ? 1 : 0);
  for (const absl::string_view name : {"nan", "inf", "infinity"}) {
    if (absl::EqualsIgnoreCase({digits.data(), digits.size()}, name)) return true;
  }
  const size_t digit = digits.find_first_of("0123456789");
  return (digit == 0 || (digit == 1 && digits.front() == '.')) && !json::accept(word);
}

// With each of them as a text, so that it spoils what it is the number of and no more.
std::string WithOddNumbersAsTexts(std::string_view reply) {
  const auto is_of_word = [](char c) { return absl::ascii_isalnum(c) || c == '+' || c == '-' || c == '.'; };
  std::string text;
  for (size_t at = 0; at < reply.size();) {
    size_t end = at + 1;
    if (reply[at] == '"') {
      while (end < reply.size() && reply[end] != '"') end += reply[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, reply.size());
    } else if (is_of_word(reply[at])) {
      while (end < reply.size() && is_of_word(reply[end])) ++end;
    }
    const std::string_view part = reply.substr(at, end - at);
    const char* const quote = IsOddNumber(part) ? "\"" : "";
    absl::StrAppend(&text, quote, std::string(part), quote);
    at = end;
  }
  return text;
}

}  // namespace

absl::StatusOr<float> ReadFinite(const json& value, std::string_view what) {
  const std::string name(what);
  if (value.is_boolean()) return value.get<bool>() ? 1.0f : 0.0f;
  if (!value.is_number()) {
    const std::string written = value.is_string() ? value.get<std::string>() : OneLineJson(value);
    return absl::InternalError(absl::StrCat(name, " is ", Quoted(written), ", no finite number"));
  }
  const float number = static_cast<float>(value.get<double>());
  if (!std::isfinite(number)) {
    return absl::InternalError(absl::StrCat(name, " is ", OneLineJson(value), ", which is beyond fp32"));
  }
  return number;
}

absl::StatusOr<std::vector<float>> ReadFiniteList(const json& value, std::string_view what) {
  if (!value.is_array()) {
    return absl::InternalError(
        absl::StrCat(std::string(what), " is ", Quoted(OneLineJson(value)), ", no list of numbers"));
  }
  std::vector<float> numbers;
  numbers.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    QUARTET_ASSIGN_OR_RETURN(const float number, ReadFinite(value[i], absl::StrCat(std::string(what), "[", i, "]")));
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<json> ParseReply(std::string_view reply, json::value_t type, std::string_view shape) {
  absl::StatusOr<json> parsed = ParseJson(reply, "");
  if (!parsed.ok()) {
    absl::StatusOr<json> tolerant = ParseJson(WithOddNumbersAsTexts(reply), "");
    if (tolerant.ok()) parsed = std::move(tolerant);
  }
  if (parsed.ok() && parsed->type() == type) return parsed;
  return absl::InternalError(absl::StrCat("the reply ", Quoted(reply), " is no JSON ", json(type).type_name(), " ",
                                          std::string(shape), parsed.ok() ? "" : ": ",
                                          std::string(parsed.status().message())));
}

absl::StatusOr<Reward> ReadReward(const json& object, const Answer* of_tokens) {
  const auto error = [&object](absl::string_view wrong) {
    return absl::InternalError(absl::StrCat("the reply ", Quoted(OneLineJson(object)), wrong));
  };
  if (!object.is_object()) return error(" is no JSON object {\"reward\": number}");
  const auto has = [&](const char* key) { return object.contains(key) && !object[key].is_null(); };
  if (has("error")) {
    const json& said = object["error"];
    return absl::InternalError(said.is_string() ? said.get<std::string>() : OneLineJson(said));
  }
  if (!has("reward") && !has("token_rewards")) {
    return error(object.contains("reward") ? " has a \"reward\" that is null" : " has no \"reward\"");
  }
  Reward reward;
  std::optional<float> said;
  if (has("reward")) {
    QUARTET_ASSIGN_OR_RETURN(said, ReadFinite(object["reward"], "\"reward\""));
    reward.value = *said;
  }
  if (has("token_rewards")) {
    if (of_tokens == nullptr) return UnexpectedTokenRewards();
    QUARTET_ASSIGN_OR_RETURN(std::vector<float> values, ReadFiniteList(object["token_rewards"], "\"token_rewards\""));
    QUARTET_RETURN_IF_ERROR(SetTokenRewards(*of_tokens, std::move(values), said, &reward));
  }
  if (has("score")) {
    QUARTET_ASSIGN_OR_RETURN(reward.score, ReadFinite(object["score"], "\"score\""));
  }
  if (has("extra_logs")) {
    if (!object["extra_logs"].is_object()) return absl::InternalError("\"extra_logs\" is no object of numbers");
    for (const auto& [name, value] : object["extra_logs"].items()) {
      QUARTET_ASSIGN_OR_RETURN(reward.extra_logs[name],
                               ReadFinite(value, absl::StrCat("\"extra_logs\": \"", name, "\"")));
    }
  }
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::find(kRewardKeys, name) != std::end(kRewardKeys)) continue;
    return error(absl::StrCat(" has ", Quoted(name), ", which nobody reads; allowed are ",
                              absl::StrJoin(kRewardKeys, ", "), ", and figures of its own in extra_logs"));
  }
  return reward;
}

}  // namespace quartet
