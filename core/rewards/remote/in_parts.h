// Requests that a server refuses for one answer of several, or for their size.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/rewards/reward.h"

namespace quartet {

struct Asked {
  // One an answer; else why the whole request has failed.
  absl::StatusOr<std::vector<absl::StatusOr<Reward>>> rewards;
  // Of one that has failed, which smaller ones may be taken: none, those of one answer each, or those of a half.
  enum class Smaller { kNone, kOnes, kHalves } smaller = Smaller::kNone;
};

// One result an answer, in their order. What a server refuses is asked in smaller parts, down to one answer, whose
// refusal is that answer's error. Where a request fails otherwise, what is left is not asked and has the same error.
std::vector<absl::StatusOr<Reward>> AskInParts(std::span<const Answer* const> answers,
                                               const std::function<Asked(std::span<const Answer* const>)>& ask);

}  // namespace quartet
