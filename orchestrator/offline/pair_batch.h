// Pairs as trainers and scorer are sent them, and what their rewards come to.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "orchestrator/data/preference_pairs.h"
#include "orchestrator/offline/offline_loop.h"
#include "proto/experience.pb.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Chosen, rejected, chosen, ...; each index is the sequence's place.
std::vector<const TokenSequence*> SequencesOf(const std::vector<PreferencePair>& pairs);
// The same with terms of a loss that is the mean over these pairs.
std::vector<TrainingSequence> TrainingPairs(const std::vector<PreferencePair>& pairs);

// The rewards of sequences in that order.
using PairRewards = std::function<absl::StatusOr<std::vector<double>>(SequenceSpan sequences)>;
// Of all held-out pairs, as PairStats says; none where `held_out` is null. Some pairs at a time are in memory, and in a
// call of `rewards`.
absl::StatusOr<std::optional<PairStats>> JudgePairs(PreferencePairs* held_out, const PairRewards& rewards);

}  // namespace quartet
