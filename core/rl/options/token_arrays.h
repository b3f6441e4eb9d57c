// What losses read of a sequence's action tokens: the arrays of a TrainingSequence, by name. What each is:
// proto/experience.proto.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "proto/experience.pb.h"

namespace quartet {

inline constexpr std::string_view kLossWeights = "loss_weights";
inline constexpr std::string_view kOldLogProbs = "old_log_probs";
inline constexpr std::string_view kAdvantages = "advantages";
inline constexpr std::string_view kRolloutLogProbs = "rollout_log_probs";
inline constexpr std::string_view kOldValues = "old_values";
inline constexpr std::string_view kReturns = "returns";
inline constexpr std::string_view kReferenceLogProbs = "reference_log_probs";

// All of them.
inline constexpr std::string_view kTokenArrays[] = {kLossWeights, kOldLogProbs, kAdvantages,       kRolloutLogProbs,
                                                    kOldValues,   kReturns,     kReferenceLogProbs};

// What ClippedValueLoss (core/rl/losses.h) reads; of the policy's losses: ArraysOf (core/rl/options/policy_losses.h).
inline constexpr std::string_view kValueLossArrays[] = {kLossWeights, kOldValues, kReturns};

// Entries that each array has.
inline int64_t CountActions(const TokenSequence& sequence) {
  return std::count(sequence.action_mask().begin(), sequence.action_mask().end(), true);
}

// Null where the sequence has none of that name.
inline const TokenArray* FindArray(const TrainingSequence& sequence, std::string_view name) {
  const auto found = std::find_if(sequence.arrays().begin(), sequence.arrays().end(),
                                  [&](const TokenArray& array) { return array.name() == name; });
  return found == sequence.arrays().end() ? nullptr : &*found;
}

// A new array of that name, to be filled.
inline google::protobuf::RepeatedField<float>& AddArray(std::string_view name, TrainingSequence* sequence) {
  TokenArray* array = sequence->add_arrays();
  array->set_name(std::string(name));
  return *array->mutable_values();
}

}  // namespace quartet
