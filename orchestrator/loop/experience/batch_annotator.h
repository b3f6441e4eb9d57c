// What models say of a batch before it is learned from: the policy's log-probabilities, the reference's, the critic's
// values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/clients/memory_turns.h"
#include "core/clients/service_clients.h"
#include "core/run_folder/records/metrics.h"
#include "core/terminal/terminal_view.h"
#include "orchestrator/loop/experience/experience.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Absolute differences of the trainer's and the rollout's log-probabilities over all action tokens.
struct LogProbDifference {
  int64_t tokens = 0;
  double mean = 0;
  double p99 = 0;
  double max = 0;
};
LogProbDifference CompareLogProbs(const std::vector<Experience>& batch, const std::vector<size_t>& positions);

// The positions in a batch of `size` whose log-probabilities the trainer recomputes at first: all, or, where
// algorithm.old_log_prob_source is not "trainer", one in 16, others in each step.
std::vector<size_t> RecomputedAtFirst(const AlgorithmConfig& algorithm, int64_t step, size_t size);

// Whether the rollout's log-probabilities may stand for the trainer's: what they differ by is then far
// below what any clip range or KL coefficient tells apart.
bool AgreeClosely(const LogProbDifference& difference);

// rollout/log_prob_diff_*.
void AddLogProbMetrics(const LogProbDifference& difference, Metrics* metrics);

// One thread. What it is made with outlives it.
class BatchAnnotator {
 public:
  BatchAnnotator(const RunConfig& config, Services& services, MemoryTurns& memory, TerminalView& view)
      : config_(config), services_(services), memory_(memory), view_(view) {}

  // Asks all of them, side by side or in turn, the policy last, and fills in log_probs, reference_log_probs and values;
  // what the run does not use stays empty. Metrics: rollout/log_prob_diff_*, policy/log_probs_recomputed and time/*.
  // FAILED_PRECONDITION where the trainer's and the rollout's log-probabilities differ by more than
  // train.max_log_prob_diff_mean.
  absl::Status Annotate(int64_t step, std::vector<Experience>* batch, Metrics* metrics);

 private:
  // Gives the batch the policy's log-probabilities, from the trainer's of `positions`.
  absl::Status TakeLogProbs(int64_t step, const std::vector<size_t>& positions,
                            std::vector<std::vector<float>> recomputed, std::vector<Experience>* batch,
                            Metrics* metrics);
  absl::StatusOr<std::vector<std::vector<float>>> Recompute(const std::vector<Experience>& batch,
                                                            const std::vector<size_t>& positions);
  absl::Status CheckLogProbs(int64_t step, const LogProbDifference& difference) const;

  const RunConfig& config_;
  Services& services_;
  MemoryTurns& memory_;
  TerminalView& view_;
  bool has_said_difference_ = false;  // for which all log-probabilities are recomputed
};

}  // namespace quartet
