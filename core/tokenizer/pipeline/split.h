// Cuts texts at the matches of a pattern.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/tokenizer/pipeline/pattern.h"
#include "core/tokenizer/pipeline/pipeline.h"

namespace quartet {

// What becomes of the matches.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// The step's "behavior".
absl::StatusOr<SplitBehavior> ReadSplitBehavior(const nlohmann::json& step);

// Cuts each piece at the matches that `find` gives, with `invert` at what lies between them; `type` is the step's.
absl::StatusOr<std::vector<Piece>> SplitPieces(const std::vector<Piece>& pieces, std::string_view type,
                                               const MatchFinder& find, SplitBehavior behavior, bool invert);

}  // namespace quartet
