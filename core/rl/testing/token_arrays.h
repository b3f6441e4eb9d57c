// For tests: arrays of a training sequence as if they were fields.
#pragma once

#include <string_view>

#include "core/rl/options/token_arrays.h"

namespace quartet {

// Empty where the sequence has none of that name.
inline const google::protobuf::RepeatedField<float>& ArrayOf(const TrainingSequence& sequence, std::string_view name) {
  static const auto& empty = *new google::protobuf::RepeatedField<float>;
  const TokenArray* found = FindArray(sequence, name);
  return found == nullptr ? empty : found->values();
}

// Added where there is none.
inline google::protobuf::RepeatedField<float>& MutableArray(std::string_view name, TrainingSequence* sequence) {
  const TokenArray* found = FindArray(*sequence, name);
  return found == nullptr ? AddArray(name, sequence) : *const_cast<TokenArray*>(found)->mutable_values();
}

inline void ClearArray(std::string_view name, TrainingSequence* sequence) {
  for (int i = sequence->arrays_size() - 1; i >= 0; --i) {
    if (sequence->arrays(i).name() == name) sequence->mutable_arrays()->DeleteSubrange(i, 1);
  }
}

}  // namespace quartet
