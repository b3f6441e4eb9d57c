// Batches of a run as files that anyone can read.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "orchestrator/loop/experience/experience.h"

namespace quartet {

// Writes a batch, once its advantages are computed, as the safetensors file `path`, in whose place another of the name
// goes. With B answers of S sequences and T tokens in all, of which A are actions, answer b's entries are
// [token_offsets[b], token_offsets[b + 1]) of the arrays of tokens and [action_offsets[b], action_offsets[b + 1]) of
// those of actions. Its tokens are those of its sequences end to end; sequence s has
// [sequence_offsets[s], sequence_offsets[s + 1]) of the arrays of tokens, and none reaches over an answer's end:
//
//   token_offsets, action_offsets              I64 [B + 1]
//   sequence_offsets                           I64 [S + 1]
//   group                                      I64 [B]  answers to one prompt have the same
//   truncated, excluded                        BOOL [B]
//   reward, score, shaped_reward               F64 [B]
//   ids                                        I32 [T]
//   action_mask                                BOOL [T]
//   token_rewards, rollout_log_probs, sampled_log_probs, log_probs, reference_log_probs, values, kl, advantages,
//   returns
//                                              F32 [A]  those that the run has
//
// docs/operations.md says what they are. Errors name the file.
absl::Status WriteBatch(const std::vector<Experience>& batch, const std::string& path);

}  // namespace quartet
