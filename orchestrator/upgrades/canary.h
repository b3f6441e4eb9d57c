// A few of a run's own sequences, which a service answers before it is replaced and after: what replaces it must answer
// alike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/clients/service_clients.h"
#include "proto/experience.pb.h"
#include "proto/rollout.pb.h"
#include "proto/run_config.pb.h"
#include "proto/scorer.pb.h"

namespace quartet {

// Sequences of one batch at most; more say no more.
inline constexpr size_t kCanarySequences = 16;

// What is asked of whom: of the trainers and the reference `sequences`, of the scorer `items`, of the rollout
// `prompts`. Indices are places.
struct Canary {
  std::vector<TokenSequence> sequences;
  std::vector<ScoreItem> items;
  std::vector<Prompt> prompts;
};

// One kind of numbers, by sequence.
struct CanaryNumbers {
  std::string name;  // "log-probabilities"
  std::vector<std::vector<float>> numbers;
  // Of answers that were generated, greedily: the tokens that the numbers are of. Else empty.
  std::vector<std::vector<int32_t>> tokens;
  bool relative = false;  // to their mean size, where that is above 1
};

// What `service` answers; greedy answers are by the weights `policy_version`.
absl::StatusOr<std::vector<CanaryNumbers>> AskCanary(const std::string& service, const RunConfig& config,
                                                     Services& services, const Canary& canary, uint64_t policy_version);

// "log-probabilities differ by 1.2e-07 on average" of each kind. FAILED_PRECONDITION where one does by more than
// `bound`. Of two greedy answers what counts ends with the first token in which they differ: where that was near a tie,
// its log-probability is nearly the same.
absl::StatusOr<std::string> CompareCanary(const std::vector<CanaryNumbers>& before,
                                          const std::vector<CanaryNumbers>& after, double bound);

}  // namespace quartet
