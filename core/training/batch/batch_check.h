// Checks of sequences that come from a client, before any rank works on them. LibTorch-free.
//
// All errors are INVALID_ARGUMENT and name the sequence by its `index`, the field, the value and what is allowed.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "proto/experience.pb.h"

namespace quartet {

struct SequenceLimits {
  int64_t vocab_size = 0;  // token ids that there are
  int64_t max_len = 0;     // tokens
};

// Indices are unique; lengths are 1 to max_len; ids are in the vocabulary; the mask is as long as the ids; the first
// token is no action.
absl::Status CheckSequences(const std::vector<const TokenSequence*>& sequences, const SequenceLimits& limits);

// CheckSequences; besides, there is at least one sequence, and each has an action token and the arrays of these names,
// and no others, with one finite entry per action token.
absl::Status CheckTrainingSequences(const std::vector<TrainingSequence>& sequences,
                                    const std::vector<std::string_view>& arrays, const SequenceLimits& limits);

// CheckSequences, for a loss that looks at no action token; besides, there is at least one sequence.
absl::Status CheckWholeSequences(const std::vector<TrainingSequence>& sequences, const SequenceLimits& limits);

// For a loss of pairs: sequences are evenly many, and each chosen one, and no other, has a `pair` that is finite.
// `has_margin`: the loss has one; else it must be 0.
absl::Status CheckPairs(const std::vector<TrainingSequence>& sequences, bool has_margin);

absl::Status CheckTemperature(float temperature);      // finite, above 0
absl::Status CheckLearningRate(double learning_rate);  // finite, not below 0

}  // namespace quartet
