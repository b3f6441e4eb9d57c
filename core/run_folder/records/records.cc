#include "core/run_folder/records/records.h"

#include <charconv>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/errors/shown.h"

namespace quartet {
namespace {

using Json = nlohmann::ordered_json;

// One line. Bytes that are not UTF-8 (a model can generate those) become U+FFFD.
std::string Line(const Json& object) { return OneLineJson(object) + "\n"; }

Json Number(double value) {
  if (!std::isfinite(value)) return nullptr;
  // Counts and versions read better without ".0".
  if (std::abs(value) < 9e15 && value == std::floor(value)) return static_cast<int64_t>(value);
  return value;
}

// Unix seconds, to the millisecond.
double Now() { return static_cast<double>(absl::ToUnixMillis(absl::Now())) / 1000; }

}  // namespace

double ShortestOfFp32(double number) {
  const auto narrow = static_cast<float>(number);
  if (narrow != number || !std::isfinite(number)) return number;
  char digits[64];
  const char* const end = std::to_chars(std::begin(digits), std::end(digits), narrow).ptr;
  std::from_chars(std::begin(digits), end, number);
  return number;
}

std::string LineOf(int64_t step, const Metrics& metrics) {
  Json object;
  object["step"] = step;
  for (const auto& [name, value] : metrics.values()) object[name] = Number(value);
  object["time/unix"] = Now();
  return Line(object);
}

std::string LineOf(const SampleRecord& sample) {
  Json object;
  object["step"] = sample.step;
  object["prompt"] = sample.prompt;
  object["response"] = sample.response;
  object["label"] = sample.label;
  object["reward"] = sample.reward.has_value() ? Number(ShortestOfFp32(*sample.reward)) : Json(nullptr);
  Json parts = Json::object();
  for (const auto& [name, value] : sample.parts) parts[name] = Number(ShortestOfFp32(value));
  object["parts"] = parts;
  if (!sample.token_rewards.empty()) {
    object["token_texts"] = sample.token_texts;
    object["token_rewards"] = Json::array();
    for (const float reward : sample.token_rewards) object["token_rewards"].push_back(Number(ShortestOfFp32(reward)));
  }
  for (const SampleSequence& sequence : sample.sequences) {
    Json& spans = object["sequences"].emplace_back(Json::array());
    for (const auto& [text, trained] : sequence) spans.push_back({{"text", text}, {"trained", trained}});
  }
  object["kl"] = sample.kl.has_value() ? Number(*sample.kl) : Json(nullptr);
  object["finish_reason"] = sample.finish_reason;
  return Line(object);
}

std::string LineOf(const EvaluationRecord& record) {
  Json object;
  object["step"] = record.step;
  object["model"] = record.model;
  object["set"] = record.set;
  object["data"] = record.data;
  object["prompts"] = record.prompts;
  object["n_samples_per_prompt"] = record.n_samples_per_prompt;
  object["temperature"] = Number(record.temperature);
  object["top_p"] = Number(record.top_p);
  for (const auto& [name, value] : record.values.values()) object[name] = Number(value);
  return Line(object);
}

std::string LineOf(const RunState& state) {
  Json object;
  object["program"] = state.program;
  object["state"] = state.state;
  object["why"] = state.why;
  object["steps"] = state.steps;
  object["services"] = state.services;
  object["time"] = Now();
  return Line(object);
}

std::string LineOf(const HeldoutRecord& record) {
  Json object;
  object["prompt"] = record.prompt;
  object["label"] = record.label;
  return Line(object);
}

std::string EventLine(const std::string& kind, int64_t step, const std::string& from, const std::string& text) {
  Json object;
  object["time"] = Now();
  object["step"] = step < 0 ? Json(nullptr) : Json(step);
  object["kind"] = kind;
  object["from"] = from;
  object["text"] = text;
  return Line(object);
}

}  // namespace quartet
