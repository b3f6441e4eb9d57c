#include "core/training/batch/batch_check.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/rl/options/token_arrays.h"

namespace quartet {

absl::Status CheckSequences(const std::vector<const TokenSequence*>& sequences, const SequenceLimits& limits) {
  std::unordered_set<uint64_t> indices;
  for (const TokenSequence* sequence : sequences) {
    const auto refuse = [&](auto&&... what) {
      return absl::InvalidArgumentError(absl::StrCat("sequence ", sequence->index(), ": ", what...));
    };
    if (!indices.insert(sequence->index()).second) {
      return refuse("index is not unique: two sequences of this call have it");
    }
    const int length = sequence->ids_size();
    if (length < 1 || length > limits.max_len) {
      return refuse("ids has ", length, " tokens; allowed are 1 to ", limits.max_len);
    }
    if (sequence->action_mask_size() != length) {
      return refuse("action_mask has ", sequence->action_mask_size(), " entries for ", length,
                    " ids; they must be equally many");
    }
    if (sequence->action_mask(0)) {
      return refuse("action_mask[0] is true; the first token cannot be an action, as nothing precedes it");
    }
    for (int t = 0; t < length; ++t) {
      if (sequence->ids(t) < 0 || sequence->ids(t) >= limits.vocab_size) {
        return refuse("ids[", t, "] is ", sequence->ids(t), "; allowed are 0 to ", limits.vocab_size - 1);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWholeSequences(const std::vector<TrainingSequence>& sequences, const SequenceLimits& limits) {
  if (sequences.empty()) {
    return absl::InvalidArgumentError("header.num_items is 0; an update needs at least one sequence");
  }
  std::vector<const TokenSequence*> tokens;
  tokens.reserve(sequences.size());
  for (const TrainingSequence& sequence : sequences) tokens.push_back(&sequence.tokens());
  return CheckSequences(tokens, limits);
}

absl::Status CheckTrainingSequences(const std::vector<TrainingSequence>& sequences,
                                    const std::vector<std::string_view>& arrays, const SequenceLimits& limits) {
  QUARTET_RETURN_IF_ERROR(CheckWholeSequences(sequences, limits));
  for (const TrainingSequence& sequence : sequences) {
    const auto refuse = [&](auto&&... what) {
      return absl::InvalidArgumentError(absl::StrCat("sequence ", sequence.tokens().index(), ": ", what...));
    };
    const int64_t actions = CountActions(sequence.tokens());
    if (actions == 0) return refuse("action_mask has no true entry; a training sequence needs an action token");
    for (const std::string_view name : arrays) {
      if (FindArray(sequence, name) == nullptr) {
        return refuse("arrays has no \"", std::string(name), "\", which this loss reads");
      }
    }
    for (int i = 0; i < sequence.arrays_size(); ++i) {
      const TokenArray& array = sequence.arrays(i);
      if (std::find(arrays.begin(), arrays.end(), array.name()) == arrays.end()) {
        return refuse("arrays has \"", array.name(), "\", which this loss does not read; it reads \"",
                      absl::StrJoin(std::vector<std::string>(arrays.begin(), arrays.end()), "\", \""), "\"");
      }
      if (FindArray(sequence, array.name()) != &array) return refuse("arrays has \"", array.name(), "\" twice");
      if (array.values_size() != actions) {
        return refuse(array.name(), " has ", array.values_size(), " entries for ", actions,
                      " action tokens; this loss needs one for each");
      }
      for (int t = 0; t < array.values_size(); ++t) {
        const float value = array.values(t);
        if (!std::isfinite(value)) return refuse(array.name(), "[", t, "] is ", value, "; it must be finite");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPairs(const std::vector<TrainingSequence>& sequences, bool has_margin) {
  if (sequences.size() % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("header.num_items is ", sequences.size(),
                     "; a loss of pairs needs an even number of sequences, each chosen one "
                     "followed by its rejected one"));
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto refuse = [&](auto&&... what) {
      return absl::InvalidArgumentError(absl::StrCat("sequence ", sequences[i].tokens().index(), ": ", what...));
    };
    if (i % 2 != 0) {
      if (sequences[i].has_pair())
        return refuse("pair is set on the rejected sequence of a pair; the chosen one has it");
      continue;
    }
    if (!sequences[i].has_pair()) return refuse("pair is not set; this loss needs it of each chosen sequence");
    const PairTerm& pair = sequences[i].pair();
    if (!std::isfinite(pair.weight())) return refuse("pair.weight is ", pair.weight(), "; it must be finite");
    if (!std::isfinite(pair.margin())) return refuse("pair.margin is ", pair.margin(), "; it must be finite");
    if (!has_margin && pair.margin() != 0) {
      return refuse("pair.margin is ", pair.margin(), "; this loss has no margin, so it must be 0");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTemperature(float temperature) {
  if (std::isfinite(temperature) && temperature > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("header.temperature is ", temperature, "; it must be finite and above 0"));
}

absl::Status CheckLearningRate(double learning_rate) {
  if (std::isfinite(learning_rate) && learning_rate >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("header.learning_rate is ", learning_rate, "; it must be finite and not below 0"));
}

}  // namespace quartet
