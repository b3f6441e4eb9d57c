#include "scorer/rewards/programs/code.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/errors/shown.h"
#include "scorer/rewards/extract.h"
#include "scorer/rewards/reply_json.h"

namespace quartet {
namespace {

using nlohmann::json;

absl::Status Wrong(std::string_view label, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("label ", Quoted(label), " has no tests of a program: ", why,
                   R"(; what it may be: {"inputs": [...], "outputs": [...]} or {"asserts": [...]})"));
}

bool AllTexts(const json& list) {
  for (const json& value : list) {
    if (!value.is_string()) return false;
  }
  return true;
}

// A literal of Python with this text.
std::string PythonText(const std::string& text) { return json(text).dump(-1, ' ', /*ensure_ascii=*/true); }

// Calls the function and writes what it returns as the last line, JSON. What it ought to return is not told.
std::string CallerOf(const std::string& function, const json& arguments) {
  return absl::StrCat(R"(import json as _json, sys as _sys
_sys.set_int_max_str_digits(0)
def _plain(x):
    if hasattr(x, "tolist"): x = x.tolist()
    return [_plain(y) for y in x] if isinstance(x, (list, tuple)) else x
_name = )",
                      PythonText(function), R"(
_function = globals()[_name] if _name in globals() else getattr(globals()["Solution"](), _name)
print("\n" + _json.dumps(_plain(_function(*_json.loads()",
                      PythonText(PrintExactJson(arguments)), R"())), default=_plain), flush=True)
)");
}

// The digits of a whole number; nothing of others.
std::string WholeNumber(const json& number) {
  if (number.is_binary()) return ExactNumber(number);
  if (number.is_number_integer()) return number.dump();
  const double value = number.get<double>();
  return std::isfinite(value) && value == std::floor(value) ? absl::StrFormat("%.0f", value == 0 ? 0 : value) : "";
}

// As Python compares them: 1 is 1.0 and True, and whole numbers are exact.
bool Equal(const json& a, const json& b) {
  if (a.is_array() && b.is_array()) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), Equal);
  }
  if (a.is_object() && b.is_object()) {
    return a.size() == b.size() && std::all_of(a.items().begin(), a.items().end(), [&](const auto& item) {
             return b.contains(item.key()) && Equal(item.value(), b[item.key()]);
           });
  }
  const auto is_number = [](const json& x) { return x.is_number() || x.is_binary() || x.is_boolean(); };
  if (!is_number(a) || !is_number(b)) return a == b;
  const auto number = [](const json& x) { return x.is_boolean() ? json(x.get<bool>() ? 1 : 0) : x; };
  if (a.is_number_float() && b.is_number_float()) return a == b;
  const std::string whole = WholeNumber(number(a));
  return !whole.empty() && whole == WholeNumber(number(b));
}

// Whether the last line of `output` is JSON of `expected`, or of its only element.
bool Returned(std::string_view output, const json& expected) {
  while (!output.empty() && output.back() == '\n') output.remove_suffix(1);
  const size_t before = output.rfind('\n');
  const absl::StatusOr<json> got =
      ParseExactJson(before == std::string_view::npos ? output : output.substr(before + 1), "");
  return got.ok() && (Equal(*got, expected) || Equal(json::array({*got}), expected));
}

// Lines without white space at their ends, nor empty ones at the end.
std::string Normal(std::string_view text) {
  std::string normal;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    while (!line.empty() && (line.back() == ' ' || line.back() == '\t' || line.back() == '\r')) line.remove_suffix(1);
    normal.append(line).push_back('\n');
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  while (!normal.empty() && normal.back() == '\n') normal.pop_back();
  return normal;
}

absl::StatusOr<bool> Passes(const std::string& program, const CodeTest& test, const SandboxLimits& limits,
                            const std::stop_token& stop) {
  if (!test.statements.empty()) return RunJudged(program, test.statements, limits, stop);
  QUARTET_ASSIGN_OR_RETURN(const SandboxedRun run, RunSandboxed(program, test.input, test.caller, limits, stop));
  if (run.end != SandboxedRun::End::kExited) return false;
  return test.caller.empty() ? Normal(run.output) == Normal(test.output) : Returned(run.output, test.returned);
}

class Code final : public RewardFunction {
 public:
  explicit Code(const CodeOptions& options) : options_(options) {}

  std::vector<absl::StatusOr<Reward>> Score(std::span<const Answer* const> answers, std::stop_token stop) override {
    std::vector<absl::StatusOr<Reward>> rewards;
    for (const Answer* answer : answers) rewards.push_back(ScoreOne(*answer, stop));
    return rewards;
  }

 private:
  absl::StatusOr<Reward> ScoreOne(const Answer& answer, const std::stop_token& stop) const {
    QUARTET_ASSIGN_OR_RETURN(const std::vector<CodeTest> tests, ReadCodeTests(answer.label));
    const std::optional<std::string> program = LastCodeBlock(answer.response, {"python", "py", "python3"});
    size_t passed = 0;
    for (size_t i = 0; program.has_value() && i < tests.size(); ++i) {
      const absl::StatusOr<bool> passes = Passes(*program, tests[i], options_.limits, stop);
      if (absl::IsInvalidArgument(passes.status())) return Wrong(answer.label, passes.status().message());
      QUARTET_RETURN_IF_ERROR(passes.status());
      passed += *passes;
      if (!*passes && !options_.share) break;
    }
    Reward reward;
    const float share = static_cast<float>(passed) / static_cast<float>(tests.size());
    reward.value = options_.share ? share : (passed == tests.size() ? 1.0f : 0.0f);
    reward.extra_logs["passed"] = share;
    return reward;
  }

  const CodeOptions options_;
};

}  // namespace

absl::StatusOr<std::vector<CodeTest>> ReadCodeTests(std::string_view label) {
  absl::StatusOr<json> parsed = ParseExactJson(label, "the label");
  if (!parsed.ok()) return Wrong(label, parsed.status().message());
  json tests = *std::move(parsed);
  if (tests.is_array()) tests = {{"asserts", tests}};
  if (!tests.is_object()) return Wrong(label, "it is no JSON object or list");
  std::vector<CodeTest> read;
  const auto text_at = [&](const char* key) { return tests.contains(key) && tests[key].is_string(); };
  if (tests.contains("asserts")) {
    const json& asserts = tests["asserts"];
    if (!asserts.is_array() || !AllTexts(asserts)) return Wrong(label, "\"asserts\" is no list of texts");
    if (tests.contains("setup") && !text_at("setup")) return Wrong(label, "\"setup\" is no text");
    const std::string setup = text_at("setup") ? tests["setup"].get<std::string>() + "\n" : "";
    for (const json& line : asserts) read.push_back({.statements = setup + line.get<std::string>() + "\n"});
  } else {
    const json inputs = tests.value("inputs", json()), outputs = tests.value("outputs", json());
    if (!inputs.is_array() || !outputs.is_array() || inputs.size() != outputs.size()) {
      return Wrong(label, "\"inputs\" and \"outputs\" are not two lists of the same length");
    }
    if (tests.contains("fn_name") && !tests["fn_name"].is_null()) {
      if (!text_at("fn_name")) return Wrong(label, "\"fn_name\" is no text");
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (!inputs[i].is_array()) return Wrong(label, "an element of \"inputs\" is no list of arguments");
        read.push_back({.caller = CallerOf(tests["fn_name"], inputs[i]), .returned = outputs[i]});
      }
    } else {
      if (!AllTexts(inputs) || !AllTexts(outputs)) return Wrong(label, "\"inputs\" and \"outputs\" are not all texts");
      for (size_t i = 0; i < inputs.size(); ++i) read.push_back({.input = inputs[i], .output = outputs[i]});
    }
  }
  if (read.empty()) return Wrong(label, "the list is empty");
  return read;
}

std::unique_ptr<RewardFunction> NewCode(const CodeOptions& options) { return std::make_unique<Code>(options); }

}  // namespace quartet
