#include "orchestrator/loop/experience/advantage_program.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/errors/shown.h"

namespace quartet {
namespace {

using nlohmann::json;

// Of a float in JSON's text.
constexpr size_t kMostBytesOfANumber = 32;

// The double with the fewest digits that is `value` again as a float: 0.1, not 0.10000000149011612.
double Short(float value) {
  if (!std::isfinite(value)) return value;
  char text[kMostBytesOfANumber] = {};
  std::to_chars(text, text + sizeof(text) - 1, value);
  return std::strtod(text, nullptr);
}

json Short(const std::vector<float>& values) {
  json list = json::array();
  for (const float value : values) list.push_back(Short(value));
  return list;
}

json Parts(const std::map<std::string, float>& parts) {
  json object = json::object();
  for (const auto& [name, value] : parts) object[name] = Short(value);
  return object;
}

json ToJson(const Experience& e, const AlgorithmConfig& algorithm) {
  const absl::StatusOr<json> row = ParseExactJson(e.prompt->row, "the row");
  const auto clamped = [&algorithm](double reward) {
    return std::clamp(reward, algorithm.reward_clip_min(), algorithm.reward_clip_max());
  };
  json answer = {
      {"group", e.group},
      {"reward", clamped(e.reward)},
      {"rewards", Parts(e.reward_parts)},
      {"extra_logs", Parts(e.extra_logs)},
      {"tokens", e.action_tokens()},
      {"truncated", e.truncated},
      {"excluded", e.excluded},
      {"prompt", e.prompt->text},
      {"response", e.response},
      {"label", e.prompt->label},
      {"source", e.prompt->source},
      {"row", row.ok() && row->is_object() ? *row : json::object()},
  };
  if (!e.token_rewards.empty()) {
    double sum = 0;
    for (const float reward : e.token_rewards) {
      answer["token_rewards"].push_back(clamped(Short(reward)));
      sum += answer["token_rewards"].back().get<double>();
    }
    answer["reward"] = sum;
  }
  for (const std::string& array : algorithm.advantage_command().arrays()) {
    if (array == "ids") {
      std::vector<int32_t> drawn;
      for (const TokenSequence& tokens : e.sequences) {
        for (int i = 0; i < tokens.ids_size(); ++i) {
          if (tokens.action_mask(i)) drawn.push_back(tokens.ids(i));
        }
      }
      answer[array] = drawn;
    } else {
      answer[array] = Short(array == "rollout_log_probs" ? e.rollout_log_probs
                            : array == "log_probs"       ? e.log_probs
                                                         : e.reference_log_probs);
    }
  }
  return answer;
}

absl::StatusOr<float> ReadAdvantage(const json& value) {
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (std::isfinite(static_cast<float>(number))) return static_cast<float>(number);
  return absl::InternalError(absl::StrCat("an advantage of ", Shown(value.dump()), ", which is no number of fp32"));
}

// One number for all tokens, or a list of one for each.
absl::StatusOr<std::vector<float>> ReadAdvantages(const json& value, size_t tokens) {
  if (!value.is_array()) {
    QUARTET_ASSIGN_OR_RETURN(const float same, ReadAdvantage(value));
    return std::vector<float>(tokens, same);
  }
  if (value.size() != tokens) {
    return absl::InternalError(
        absl::StrCat("a list of ", value.size(), " advantages, and the answer has ", tokens, " tokens"));
  }
  std::vector<float> advantages;
  for (const json& one : value) {
    QUARTET_ASSIGN_OR_RETURN(advantages.emplace_back(), ReadAdvantage(one));
  }
  return advantages;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdvantageProgram>> AdvantageProgram::Start(const AlgorithmConfig& algorithm) {
  auto program = absl::WrapUnique(new AdvantageProgram(algorithm));
  const AdvantageCommandConfig& config = algorithm.advantage_command();
  absl::StatusOr<std::unique_ptr<PipedProcess>> process =
      PipedProcess::Start({.argv = ShellArguments(config.command()), .folder = config.command_folder()});
  absl::Status status = process.status();
  if (status.ok()) {
    program->process_ = *std::move(process);
    status = program->Exchange(-1, {}, {}).status();
  }
  if (status.ok()) return program;
  return program->Named(absl::InvalidArgumentError(status.message()));
}

absl::Status AdvantageProgram::Named(const absl::Status& status) const {
  const absl::Status named =
      Prefixed(absl::StrCat("algorithm.advantage_command ", Quoted(algorithm_.advantage_command().command())), status);
  return process_ == nullptr ? named : process_->WithLastWords(named);
}

absl::Status AdvantageProgram::Ask(int64_t step, std::vector<Experience>* batch, const std::stop_token& stop) {
  absl::StatusOr<std::vector<std::vector<float>>> advantages = Exchange(step, *batch, stop);
  if (!advantages.ok()) return Named(Prefixed(absl::StrCat("step ", step + 1), advantages.status()));
  for (size_t i = 0; i < batch->size(); ++i) (*batch)[i].given_advantages = std::move((*advantages)[i]);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<float>>> AdvantageProgram::Exchange(int64_t step,
                                                                           const std::vector<Experience>& batch,
                                                                           const std::stop_token& stop) {
  json question = {{"step", step}, {"answers", json::array()}};
  size_t tokens = 0;
  for (const Experience& e : batch) {
    question["answers"].push_back(ToJson(e, algorithm_));
    tokens += 1 + static_cast<size_t>(e.action_tokens());
  }
  constexpr size_t kOther = 1 << 20;
  const absl::Duration timeout = absl::Seconds(algorithm_.advantage_command().timeout_seconds());
  const absl::StatusOr<std::string> reply =
      process_->Ask(PrintExactJson(question), kOther + tokens * kMostBytesOfANumber, Deadline::In(timeout), stop);
  if (absl::IsDeadlineExceeded(reply.status())) {
    return absl::DeadlineExceededError(
        absl::StrCat("no answer after ", absl::FormatDuration(timeout), " (timeout_seconds)"));
  }
  QUARTET_RETURN_IF_ERROR(reply.status());
  const absl::StatusOr<json> said = ParseJson(*reply, "");
  const bool has_list = said.ok() && said->is_object() && said->contains("advantages") &&
                        (*said)["advantages"].is_array() && (*said)["advantages"].size() == batch.size();
  if (!said.ok() && (absl::StrContains(*reply, "NaN") || absl::StrContains(*reply, "Infinity"))) {
    return absl::InternalError(
        absl::StrCat("the reply ", Quoted(*reply), " has NaN or Infinity, which is no advantage"));
  }
  if (!has_list) {
    return absl::InternalError(absl::StrCat("the reply ", Quoted(*reply), " is no JSON object {\"advantages\": [",
                                            batch.size(), " numbers or lists of numbers, one an answer]}"));
  }
  std::vector<std::vector<float>> advantages;
  for (size_t i = 0; i < batch.size(); ++i) {
    absl::StatusOr<std::vector<float>> of_one =
        ReadAdvantages((*said)["advantages"][i], static_cast<size_t>(batch[i].action_tokens()));
    if (!of_one.ok()) return Prefixed(absl::StrCat("answer ", i, " (counted from 0) got"), of_one.status());
    advantages.push_back(*std::move(of_one));
  }
  return advantages;
}

}  // namespace quartet
