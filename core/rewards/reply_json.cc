#include "core/rewards/reply_json.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/errors/shown.h"

namespace quartet {

using nlohmann::json;

json ToJson(const Answer& answer) {
  return {{"query", answer.query}, {"prompt", answer.prompt}, {"response", answer.response},  {"label", answer.label},
          {"row", RowOf(answer)},  {"source", answer.source}, {"truncated", answer.truncated}};
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

absl::StatusOr<json> ParseReply(std::string_view reply, json::value_t type, std::string_view shape) {
  absl::StatusOr<json> parsed = ParseJson(reply, "");
  if (parsed.ok() && parsed->type() == type) return parsed;
  for (const std::string_view word : {"NaN", "Infinity"}) {
    if (!parsed.ok() && reply.find(word) != std::string_view::npos) {
      return absl::InternalError(absl::StrCat("the reply ", Quoted(reply), " has NaN or Infinity, which is no reward"));
    }
  }
  return absl::InternalError(absl::StrCat("the reply ", Quoted(reply), " is no JSON ", json(type).type_name(), " ",
                                          std::string(shape), parsed.ok() ? "" : ": ",
                                          std::string(parsed.status().message())));
}

absl::StatusOr<Reward> ReadReward(const json& object) {
  const auto error = [&object](absl::string_view wrong) {
    return absl::InternalError(absl::StrCat("the reply ", Quoted(PrintJson(object)), wrong));
  };
  if (!object.is_object()) return error(" is no JSON object {\"reward\": number}");
  const auto has = [&](const char* key) { return object.contains(key) && !object[key].is_null(); };
  if (has("error")) {
    const json& said = object["error"];
    return absl::InternalError(said.is_string() ? said.get<std::string>() : PrintJson(said));
  }
  if (!has("reward")) {
    return error(object.contains("reward") ? " has a \"reward\" that is null" : " has no \"reward\"");
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
