// What the steps look for in a text, and put in its place.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/tokenizer/unicode/regex.h"

namespace quartet {

using TextRange = std::pair<size_t, size_t>;  // [first, second), bytes

// Finds a pattern's matches in a text: ascending, not empty. `budget` is for all texts of one step.
using MatchFinder = std::function<absl::StatusOr<std::vector<TextRange>>(const std::string& text, RegexBudget* budget)>;

MatchFinder FindAll(Regex regex);

// {"String": ...} or {"Regex": ...}, of which one is set.
struct Pattern {
  std::optional<std::string> literal;
  std::optional<std::string> regex;
};

// The step's "pattern".
absl::StatusOr<Pattern> ReadPattern(const nlohmann::json& step);
absl::StatusOr<MatchFinder> FindPattern(const nlohmann::json& step);

// `text` with `content` in the place of each match.
std::string ReplaceMatches(const std::string& text, const std::vector<TextRange>& matches, const std::string& content);
std::string ReplaceLiteral(const std::string& text, const std::string& literal, const std::string& content);

}  // namespace quartet
