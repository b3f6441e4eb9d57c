// How the losses of tokens become the loss of one optimizer step. Formulas: docs/algorithms.md.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet {

enum class LossAggregation {
  kTokenMean,                // every action token of the optimizer step counts the same
  kSequenceMean,             // every sequence counts the same; within it, every action token
  kSequenceSumOverConstant,  // mean over sequences of (sum over action tokens / a constant) (Dr.GRPO: Liu et al. 2025)
};

// "token_mean", "sequence_mean" or "sequence_sum_over_constant"; anything else is INVALID_ARGUMENT.
absl::StatusOr<LossAggregation> ParseLossAggregation(std::string_view name);

// One sequence of an optimizer step.
struct AggregatedSequence {
  int64_t action_tokens = 0;
  // Left out of the loss, as overlong answers may be.
  bool excluded = false;
};

// The weight of each action token of each sequence of one optimizer step. Losses times weights add up to the loss of
// the step, whatever ranks and micro-batches it is cut into. Sequences without action tokens and excluded ones get no
// weight and do not count. `constant`: of kSequenceSumOverConstant, above 0. Defined for float and double.
template <typename T = float>
std::vector<T> LossWeights(std::span<const AggregatedSequence> sequences, LossAggregation aggregation,
                           double constant = 0);

}  // namespace quartet
