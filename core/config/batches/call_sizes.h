// How long sequences are, and what the calls of a run bring to its services.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Tokens of prompt and answer together, each as long as it may be.
inline int64_t LongestTurn(const RunConfig& config) {
  return int64_t{config.data().prompt_max_len()} + config.rollout().generate_max_len();
}
// The same, or with an agent, whose sequences have several turns, actor.max_len where it is set.
int64_t LongestSequence(const RunConfig& config);
// Tokens that the rollout is asked to go on from, at most: of a prompt, or with an agent of what was said before a
// turn.
int64_t LongestPrompt(const RunConfig& config);

// Tokens of a sequence that are drawn, and so trained on: an answer's, or with an agent those of as many turns as fit
// into it.
int64_t MostActions(const RunConfig& config);
// Sequences that an answer may become: one, or with an agent one for each of its turns.
int64_t MostSequencesOfAnswer(const RunConfig& config);
// Sequences that are trained on of a step's answers.
int64_t MostSequencesOfStep(const RunConfig& config);

// max_call_bytes of a service where a step needs no more.
inline constexpr int64_t kMostCallBytes = int64_t{1} << 30;

// Held-out pairs that are judged in one call.
inline constexpr int64_t kPairsAtATime = 256;

// Bytes of memory that a call with all of a step's sequences takes, if each is as long as it may be; of a run that
// learns from rows, with all of a batch's. Of a configuration whose rollout, models and batch are filled in.
int64_t LargestCallBytes(const RunConfig& config);

// That the services take the calls of a run's step or of an evaluation: INVALID_ARGUMENT names the limit. Of a resolved
// configuration.
//
// Of a PPO run's step, and of its evaluations of up to `evaluated` sequences at once; whose bytes may be more than a
// limit of kMostCallBytes, as few of so many are as long as they may be.
absl::Status CheckCallSizes(const RunConfig& config, int64_t evaluated);
// Of an evaluation alone, likewise.
absl::Status CheckEvaluationCalls(const RunConfig& config, int64_t evaluated);
// Of a run that learns from rows, fine-tuning, DPO or a reward model.
absl::Status CheckRowCalls(const RunConfig& config);

}  // namespace quartet
