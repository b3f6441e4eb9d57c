// Punishment of overlong answers, and groups that teach nothing. Formulas: docs/algorithms.md.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"

namespace quartet {

// What the parts of a reward add up to. Where they cancel but for their rounding (core/rl/options/moments.h), 0: what
// is left of 0.3 - 0.2 - 0.1 is no difference between answers.
double AddRewards(std::span<const double> parts);

// To be added to a reward. At most 0: nothing for an answer that leaves the last `buffer` of its max_new_tokens tokens
// unused, then falling linearly to -factor (soft overlong punishment, DAPO: Yu et al. 2025, equation 13).
// 0 < buffer <= max_new_tokens; factor not negative.
double OverlongPenalty(int64_t tokens, int64_t max_new_tokens, int64_t buffer, double factor);

// Which groups (all answers to one prompt) are learned from.
enum class GroupFilter {
  kNone,        // all
  kNotEqual,    // those whose metric is not the same for all answers: verl, which keeps what is left of one answer too
  kMeanInside,  // those whose mean metric is strictly between `low` and `high`: OpenRLHF
};

// "none", "not_equal" or "mean_inside"; anything else is INVALID_ARGUMENT.
absl::StatusOr<GroupFilter> ParseGroupFilter(std::string_view name);

// Whether a group is kept, by the metric of each of its answers (at least one). What is the same but for rounding is
// the same.
bool KeepsGroup(std::span<const double> metrics, GroupFilter filter, double low, double high);

}  // namespace quartet
