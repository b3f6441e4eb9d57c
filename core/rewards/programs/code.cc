#include "core/rewards/programs/code.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/errors/shown.h"
#include "core/rewards/extract.h"
#include "core/rewards/reply_json.h"

namespace quartet {
namespace {

using nlohmann::json;

// All tests of an answer may take together as long as so many that take as long as one may.
constexpr int kLongestTests = 10;

absl::Status Wrong(std::string_view label, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("label ", Quoted(label), " has no tests of a program: ", why,
                   R"(; what it may be: {"inputs": [...], "outputs": [...]}, {"asserts": [...]}, a list of such )"
                   R"(texts, {"test": ..., "entry_point": ...} or [{"input": ..., "output": ...}, ...])"));
}

#include "core/rewards/programs/imports.inc"

// A text; of a list of texts, these as lines.
std::optional<std::string> LinesIn(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return std::nullopt;
  std::string lines;
  for (const json& line : value) {
    if (!line.is_string()) return std::nullopt;
    absl::StrAppend(&lines, line.get_ref<const std::string&>(), "\n");
  }
  return lines;
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
_arguments = _json.loads()",
                      PythonText(PrintExactJson(arguments)), R"()
if len(_arguments) == 1 and isinstance(_arguments[0], dict):
    try: _arguments = [{int(key): x for key, x in _arguments[0].items()}]
    except ValueError: pass
print("\n" + _json.dumps(_plain(_function(*_arguments)), default=_plain), flush=True)
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
std::vector<std::string_view> LinesOf(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    while (!line.empty() && (line.back() == ' ' || line.back() == '\t' || line.back() == '\r')) line.remove_suffix(1);
    lines.push_back(line);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

// A decimal number: 0.`digits` times 10 to `exponent`. Without zeros at either end, so that each has one form.
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t exponent = 0;
  bool operator==(const Decimal&) const = default;
};

std::optional<Decimal> ReadDecimal(std::string_view word) {
  Decimal number;
  if (word.starts_with('-') || word.starts_with('+')) {
    number.negative = word.front() == '-';
    word.remove_prefix(1);
  }
  const size_t e = word.find_first_of("eE");
  if (e != std::string_view::npos) {
    std::string_view power = word.substr(e + 1);
    if (power.starts_with('+')) power.remove_prefix(1);
    constexpr size_t kMostDigits = 12;
    if (power.size() > kMostDigits ||
        !absl::SimpleAtoi(absl::string_view(power.data(), power.size()), &number.exponent)) {
      return std::nullopt;
    }
    word = word.substr(0, e);
  }
  const size_t point = word.find('.');
  number.digits = word.substr(0, point);
  number.exponent += static_cast<int64_t>(number.digits.size());
  if (point != std::string_view::npos) number.digits += word.substr(point + 1);
  if (number.digits.empty() || number.digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const size_t zeros = std::min(number.digits.find_first_not_of('0'), number.digits.size());
  number.digits.erase(0, zeros);
  number.exponent -= static_cast<int64_t>(zeros);
  number.digits.erase(number.digits.find_last_not_of('0') + 1);
  return number.digits.empty() ? Decimal() : number;
}

// Whether two lines are the same, or the same numbers: 1.0 is 1, exactly.
bool SameLine(std::string_view a, std::string_view b) {
  if (a == b) return true;
  const auto words = [](std::string_view line) {
    return std::vector<std::string>(
        absl::StrSplit(absl::string_view(line.data(), line.size()), absl::ByAnyChar(" \t\r\v\f"), absl::SkipEmpty()));
  };
  const auto same = [](const std::string& x, const std::string& y) {
    const std::optional<Decimal> number = ReadDecimal(x);
    return number.has_value() && number == ReadDecimal(y);
  };
  const std::vector<std::string> in_a = words(a), in_b = words(b);
  return std::equal(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(), same);
}

bool SameOutput(std::string_view a, std::string_view b) {
  const std::vector<std::string_view> in_a = LinesOf(a), in_b = LinesOf(b);
  return std::equal(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(), SameLine);
}

// The program with what it takes for granted; imports from __future__ stay the first.
std::string WithImports(const std::string& program) {
  size_t first = 0;
  for (size_t line = 0; line != std::string::npos && line < program.size();) {
    const size_t end = program.find('\n', line);
    if (program.compare(line, 15, "from __future__") == 0) first = end == std::string::npos ? program.size() : end + 1;
    line = end == std::string::npos ? end : end + 1;
  }
  return absl::StrCat(program.substr(0, first), "\nexec(", PythonText(k_imports), ", {})\n", program.substr(first));
}

absl::StatusOr<bool> Passes(const std::string& answer, const CodeTest& test, const SandboxLimits& limits,
                            const std::stop_token& stop) {
  const std::string program = WithImports(answer);
  if (!test.statements.empty()) return RunJudged(program, test.statements, limits, stop);
  QUARTET_ASSIGN_OR_RETURN(const SandboxedRun run, RunSandboxed(program, test.input, test.caller, limits, stop));
  if (run.end != SandboxedRun::End::kExited) return false;
  return test.caller.empty() ? SameOutput(run.output, test.output) : Returned(run.output, test.returned);
}

bool IsWord(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80) != 0; }

// The names that tests ask for: of functions that are called, and all in statements. They point into `tests`.
absl::flat_hash_set<std::string_view> NamesIn(const std::vector<CodeTest>& tests) {
  absl::flat_hash_set<std::string_view> names;
  for (const CodeTest& test : tests) {
    if (!test.function.empty()) names.insert(test.function);
    const std::string_view text = test.statements;
    for (size_t begin = 0; begin < text.size();) {
      size_t end = begin;
      while (end < text.size() && IsWord(text[end])) ++end;
      if (end > begin) names.insert(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return names;
}

// Whether `program` defines a function or class of one of these names.
bool Defines(std::string_view program, const absl::flat_hash_set<std::string_view>& names) {
  for (std::string_view line : LinesOf(program)) {
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
    if (line.starts_with("async ")) line.remove_prefix(6);
    const size_t begin = line.starts_with("def ") ? 4 : line.starts_with("class ") ? 6 : 0;
    size_t end = begin;
    while (end < line.size() && IsWord(line[end])) ++end;
    if (begin == 0 && !line.substr(end).starts_with(" = lambda")) continue;
    if (names.contains(line.substr(begin, end - begin))) return true;
  }
  return false;
}

// The last code block that defines what the tests ask for: one behind it may show how that is used. Else the last one.
std::optional<std::string> ProgramIn(std::string_view answer, const std::vector<CodeTest>& tests) {
  const std::vector<std::string> blocks = CodeBlocks(answer, {"python", "py", "python3"});
  if (blocks.empty()) return std::nullopt;
  const absl::flat_hash_set<std::string_view> names = NamesIn(tests);
  const auto last = std::find_if(blocks.rbegin(), blocks.rend(), [&](const auto& x) { return Defines(x, names); });
  return last == blocks.rend() ? blocks.back() : *last;
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
    const std::optional<std::string> program = ProgramIn(answer.response, tests);
    size_t passed = 0;
    absl::Duration left = kLongestTests * options_.limits.timeout;
    SandboxLimits limits = options_.limits;
    limits.left = &left;
    for (size_t i = 0; program.has_value() && i < tests.size() && left > absl::ZeroDuration(); ++i) {
      const absl::StatusOr<bool> passes = Passes(*program, tests[i], limits, stop);
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

// The value at the first of `keys` that `object` has, and that is not null there.
const json* FirstOf(const json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (object.contains(key) && !object[key].is_null()) return &object[key];
  }
  return nullptr;
}

// The name of the function that `tests` call; null where they are of the program's output.
absl::StatusOr<json> FunctionOf(const json& tests) {
  if (const json* name = FirstOf(tests, {"fn_name", "func_name", "entry_point"})) return *name;
  if (const json* metadata = FirstOf(tests, {"metadata"})) {
    json object = *metadata;
    if (metadata->is_string()) {  // any other text is for people to read
      object = ParseExactJson(metadata->get_ref<const std::string&>(), "").value_or(json());
    }
    const json* name = object.is_object() ? FirstOf(object, {"func_name", "fn_name"}) : nullptr;
    if (name != nullptr) return *name;
  }
  return json();
}

// Refuses tests of a function that say so and do not name it.
absl::Status CheckKind(const json& tests, const json& function) {
  const json* kind = FirstOf(tests, {"testtype", "type"});
  if (!function.is_null() || kind == nullptr || (*kind != "functional" && *kind != "function_call")) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "a function is tested and not named (\"fn_name\", or \"func_name\" in \"metadata\")");
}

// Of a call of `function`, or of the program where that is null.
absl::StatusOr<CodeTest> ReadCase(const json& function, const json& input, const json& output) {
  if (function.is_null()) {
    const std::optional<std::string> in = LinesIn(input), out = LinesIn(output);
    if (in.has_value() && out.has_value()) return CodeTest{.input = *in, .output = *out};
    return absl::InvalidArgumentError("inputs and outputs are not all texts, or lists of lines");
  }
  if (!function.is_string()) return absl::InvalidArgumentError("the function's name is no text");
  json arguments = input, returned = output;
  if (input.is_string() && output.is_string()) {  // a line of JSON for each argument, and the value's JSON
    arguments = json::array();
    for (const std::string_view line : LinesOf(input.get_ref<const std::string&>())) {
      QUARTET_ASSIGN_OR_RETURN(json argument, ParseExactJson(line, "a line of an input"));
      arguments.push_back(std::move(argument));
    }
    QUARTET_ASSIGN_OR_RETURN(returned, ParseExactJson(output.get_ref<const std::string&>(), "an output"));
  }
  if (!arguments.is_array()) return absl::InvalidArgumentError("an input is no list of arguments");
  return CodeTest{.function = function, .caller = CallerOf(function, arguments), .returned = returned};
}

// Those that name no function call `common`, where that is not null.
absl::StatusOr<std::vector<CodeTest>> ReadCases(const json& cases, const json& common) {
  std::vector<CodeTest> tests;
  for (const json& one : cases) {
    if (!one.is_object() || !one.contains("input") || !one.contains("output")) {
      return absl::InvalidArgumentError("an element of the list has no \"input\" and \"output\"");
    }
    QUARTET_ASSIGN_OR_RETURN(json function, FunctionOf(one));
    if (function.is_null()) function = common;
    QUARTET_RETURN_IF_ERROR(CheckKind(one, function));
    QUARTET_ASSIGN_OR_RETURN(tests.emplace_back(), ReadCase(function, one["input"], one["output"]));
  }
  return tests;
}

absl::StatusOr<std::vector<CodeTest>> ReadStatements(const json& object, const json& asserts) {
  std::string setup;
  for (const char* key : {"test_imports", "setup", "test_setup_code"}) {
    const json* part = FirstOf(object, {key});
    const std::optional<std::string> text = part == nullptr ? "" : LinesIn(*part);
    if (!text.has_value()) return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is no text"));
    if (!text->empty()) absl::StrAppend(&setup, *text, "\n");
  }
  std::vector<CodeTest> tests;
  for (const json& line : asserts) {
    if (!line.is_string()) return absl::InvalidArgumentError("the asserts are not all texts");
    tests.push_back({.statements = absl::StrCat(setup, line.get_ref<const std::string&>(), "\n")});
  }
  return tests;
}

absl::StatusOr<std::vector<CodeTest>> ReadTests(const json& label) {
  if (label.is_array() && !label.empty() && label[0].is_object()) return ReadCases(label, json());
  if (label.is_array()) return ReadStatements(json::object(), label);
  if (!label.is_object()) return absl::InvalidArgumentError("it is no JSON object or list");
  if (const json* cases = FirstOf(label, {"test_cases"})) {
    QUARTET_ASSIGN_OR_RETURN(const json function, FunctionOf(label));
    return ReadCases(*cases, function);
  }
  if (const json* asserts = FirstOf(label, {"asserts", "test_list"})) {
    if (!asserts->is_array()) return absl::InvalidArgumentError("the asserts are no list");
    return ReadStatements(label, *asserts);
  }
  if (const json* test = FirstOf(label, {"test"})) {
    const json* function = FirstOf(label, {"entry_point"});
    if (!test->is_string() || (function != nullptr && !function->is_string())) {
      return absl::InvalidArgumentError("\"test\" or \"entry_point\" is no text");
    }
    const std::string check = function == nullptr ? "" : absl::StrCat("\ncheck(", function->get<std::string>(), ")");
    return ReadStatements(label, json::array({absl::StrCat(test->get<std::string>(), check)}));
  }
  const json inputs = label.value("inputs", json()), outputs = label.value("outputs", json());
  if (!inputs.is_array() || !outputs.is_array() || inputs.size() != outputs.size()) {
    return absl::InvalidArgumentError("\"inputs\" and \"outputs\" are not two lists of the same length");
  }
  QUARTET_ASSIGN_OR_RETURN(const json function, FunctionOf(label));
  QUARTET_RETURN_IF_ERROR(CheckKind(label, function));
  std::vector<CodeTest> tests;
  for (size_t i = 0; i < inputs.size(); ++i) {
    QUARTET_ASSIGN_OR_RETURN(tests.emplace_back(), ReadCase(function, inputs[i], outputs[i]));
  }
  return tests;
}

}  // namespace

absl::StatusOr<std::vector<CodeTest>> ReadCodeTests(std::string_view label) {
  const absl::StatusOr<json> parsed = ParseExactJson(label, "the label");
  if (!parsed.ok()) return Wrong(label, parsed.status().message());
  absl::StatusOr<std::vector<CodeTest>> tests = ReadTests(*parsed);
  if (!tests.ok()) return Wrong(label, tests.status().message());
  if (tests->empty()) return Wrong(label, "the list is empty");
  return tests;
}

std::unique_ptr<RewardFunction> NewCode(const CodeOptions& options) { return std::make_unique<Code>(options); }

}  // namespace quartet
