// How the losses of tokens become the loss of one optimizer step. Formulas: docs/algorithms.md.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet {

enum class LossAggregation {
  kTokenMean,     // every action token of the optimizer step counts the same
  kSequenceMean,  // every sequence counts the same; within it, every action token
};

// "token_mean" or "sequence_mean"; anything else is INVALID_ARGUMENT.
absl::StatusOr<LossAggregation> ParseLossAggregation(std::string_view name);

// The weight of each action token of each sequence of one optimizer step, given by `action_tokens`: the action tokens
// of each sequence. The weights sum to 1 over the whole step, whatever ranks and micro-batches it is cut into later.
// Sequences without action tokens get no weight and do not count.
std::vector<float> LossWeights(std::span<const int64_t> action_tokens, LossAggregation aggregation);

}  // namespace quartet
