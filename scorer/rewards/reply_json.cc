#include "scorer/rewards/reply_json.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/errors/shown.h"

namespace quartet {

using nlohmann::json;

json ToJson(const Answer& answer) {
  return {{"query", answer.query}, {"prompt", answer.prompt},       {"response", answer.response},
          {"label", answer.label}, {"truncated", answer.truncated}, {"row", RowOf(answer)}};
}

json RowOf(const Answer& answer) {
  absl::StatusOr<json> row = ParseExactJson(answer.row, "the row");
  return row.ok() && row->is_object() ? *std::move(row) : json::object();
}

std::string PrintJson(const json& value) {
  return value.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

absl::StatusOr<float> ReadFinite(const json& value, std::string_view what) {
  const std::string name(what);
  if (value.is_boolean()) return value.get<bool>() ? 1.0f : 0.0f;
  if (!value.is_number())
    return absl::InternalError(absl::StrCat(name, " is ", Quoted(PrintJson(value)), ", no number"));
  const float number = static_cast<float>(value.get<double>());
  if (!std::isfinite(number)) {
    return absl::InternalError(absl::StrCat(name, " is ", PrintJson(value), ", which is beyond fp32"));
  }
  return number;
}

absl::StatusOr<json> ReadReplyObject(std::string_view reply, std::string_view shape) {
  absl::StatusOr<json> parsed = ParseJson(reply, "");
  if (parsed.ok() && parsed->is_object()) return parsed;
  for (const std::string_view word : {"NaN", "Infinity"}) {
    if (!parsed.ok() && reply.find(word) != std::string_view::npos) {
      return absl::InternalError(absl::StrCat("the reply ", Quoted(reply), " has NaN or Infinity, which is no reward"));
    }
  }
  return absl::InternalError(absl::StrCat("the reply ", Quoted(reply), " is no JSON object ", std::string(shape),
                                          parsed.ok() ? "" : ": ", std::string(parsed.status().message())));
}

absl::StatusOr<Reward> ReadReward(std::string_view reply) {
  QUARTET_ASSIGN_OR_RETURN(const json object, ReadReplyObject(reply, "{\"reward\": number}"));
  const auto has = [&](const char* key) { return object.contains(key) && !object[key].is_null(); };
  if (has("error")) {
    const json& error = object["error"];
    return absl::InternalError(error.is_string() ? error.get<std::string>() : PrintJson(error));
  }
  if (!has("reward")) {
    const char* wrong = object.contains("reward") ? " has a \"reward\" that is null" : " has no \"reward\"";
    return absl::InternalError(absl::StrCat("the reply ", Quoted(reply), wrong));
  }
  Reward reward;
  QUARTET_ASSIGN_OR_RETURN(reward.value, ReadFinite(object["reward"], "\"reward\""));
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
  return reward;
}

}  // namespace quartet
