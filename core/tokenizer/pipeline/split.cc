#include "core/tokenizer/pipeline/split.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/tokenizer/pipeline/step.h"

namespace quartet {
namespace {

struct Cut {
  TextRange range;
  bool matches;
};

std::vector<Cut> MergeCuts(const std::vector<Cut>& cuts, SplitBehavior behavior) {
  std::vector<Cut> merged;
  const auto add = [&](const Cut& cut, bool joins) {
    if (joins && !merged.empty()) {
      merged.back().range = {std::min(merged.back().range.first, cut.range.first),
                             std::max(merged.back().range.second, cut.range.second)};
    } else {
      merged.push_back(cut);
    }
  };
  bool previous = false;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return cuts;
    case SplitBehavior::kRemoved:
      for (const Cut& cut : cuts) {
        if (!cut.matches) merged.push_back(cut);
      }
      return merged;
    case SplitBehavior::kContiguous:
      for (size_t i = 0; i < cuts.size(); ++i) add(cuts[i], i > 0 && cuts[i].matches == cuts[i - 1].matches);
      return merged;
    case SplitBehavior::kMergedWithPrevious:
      for (const Cut& cut : cuts) {
        add(cut, cut.matches && !previous);
        previous = cut.matches;
      }
      return merged;
    case SplitBehavior::kMergedWithNext:
      for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
        add(*cut, cut->matches && !previous);
        previous = cut->matches;
      }
      std::reverse(merged.begin(), merged.end());
      return merged;
  }
  return merged;
}

}  // namespace

absl::StatusOr<SplitBehavior> ReadSplitBehavior(const nlohmann::json& step) {
  QUARTET_ASSIGN_OR_RETURN(const std::string name, StepText(step, "behavior"));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return StepError(step, absl::StrCat("the behavior \"", name, "\" is not supported"));
}

absl::StatusOr<std::vector<Piece>> SplitPieces(const std::vector<Piece>& pieces, std::string_view type,
                                               const MatchFinder& find, SplitBehavior behavior, bool invert) {
  size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.text.size();
  RegexBudget budget(bytes);
  std::vector<Piece> parts;
  for (const Piece& piece : pieces) {
    const absl::StatusOr<std::vector<TextRange>> matches = find(piece.text, &budget);
    if (!matches.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(std::string(type), ": ", std::string(matches.status().message())));
    }
    std::vector<Cut> cuts;
    size_t at = 0;
    for (const TextRange& match : *matches) {
      if (match.first > at) cuts.push_back({{at, match.first}, invert});
      cuts.push_back({match, !invert});
      at = match.second;
    }
    if (at < piece.text.size()) cuts.push_back({{at, piece.text.size()}, invert});
    for (const Cut& cut : MergeCuts(cuts, behavior)) {
      const auto& [begin, end] = cut.range;
      parts.push_back({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
    }
  }
  return parts;
}

}  // namespace quartet
