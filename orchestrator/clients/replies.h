// Whether what came back answers what was asked. gRPC-free.
//
// Each item must be answered exactly once, in any order, with the right number of finite values. INTERNAL says what is
// wrong. Indices of what is asked are unique.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/experience.pb.h"
#include "proto/rollout.pb.h"
#include "proto/scorer.pb.h"

namespace quartet {

// One array a sequence, in the order of `sequences`; one value an action token.
absl::StatusOr<std::vector<std::vector<float>>> OrderTokenValues(const std::vector<TokenSequence>& sequences,
                                                                 const std::vector<const TokenValues*>& replies);

// By prompt (in the order of `prompts`), then by sample. Every sequence begins with its prompt, has between 1 and
// max_new_tokens tokens after it, all of them actions, made by header.policy_version alone, and came to its own end.
absl::StatusOr<std::vector<GeneratedSequence>> OrderGenerated(const GenerateHeader& header,
                                                              const std::vector<Prompt>& prompts,
                                                              std::vector<GenerateReply> replies);

// In the order of `items`.
absl::StatusOr<std::vector<ScoreReply>> OrderScores(const std::vector<ScoreItem>& items,
                                                    std::vector<ScoreReply> replies);

}  // namespace quartet
