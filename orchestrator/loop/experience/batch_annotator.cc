#include "orchestrator/loop/experience/batch_annotator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/base/status_macros.h"
#include "core/base/time/side_by_side.h"
#include "core/base/time/stopwatch.h"
#include "core/config/services.h"
#include "core/rl/options/moments.h"

namespace quartet {
namespace {

// All positions of a batch of `size`.
std::vector<size_t> AllOf(size_t size) {
  std::vector<size_t> all(size);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// The sequences of the experiences at `positions`, one after the other.
std::vector<const TokenSequence*> SequencesOf(const std::vector<Experience>& batch,
                                              const std::vector<size_t>& positions) {
  std::vector<const TokenSequence*> sequences;
  for (const size_t position : positions) {
    for (const TokenSequence& sequence : batch[position].sequences) sequences.push_back(&sequence);
  }
  return sequences;
}

// Gives these experiences what was said of each of SequencesOf them, as their `array`.
void Take(const std::vector<std::vector<float>>& said, const std::vector<size_t>& positions,
          std::vector<float> Experience::*array, std::vector<Experience>* batch) {
  size_t next = 0;
  for (const size_t position : positions) {
    std::vector<float>& values = (*batch)[position].*array;
    values.clear();
    for (size_t i = 0; i < (*batch)[position].sequences.size(); ++i, ++next) {
      values.insert(values.end(), said[next].begin(), said[next].end());
    }
  }
}

}  // namespace

LogProbDifference CompareLogProbs(const std::vector<Experience>& batch, const std::vector<size_t>& positions) {
  std::vector<double> differences;
  for (const size_t position : positions) {
    const Experience& e = batch[position];
    for (int64_t t = 0; t < e.action_tokens(); ++t) {
      differences.push_back(
          std::abs(static_cast<double>(e.log_probs[t]) - static_cast<double>(e.rollout_log_probs[t])));
    }
  }
  LogProbDifference result;
  if (differences.empty()) return result;
  result.tokens = static_cast<int64_t>(differences.size());
  result.mean = MomentsOf(differences).mean;
  result.max = *std::max_element(differences.begin(), differences.end());
  // The smallest value that at least 99 % of the tokens do not exceed.
  const size_t rank = static_cast<size_t>(std::ceil(0.99 * static_cast<double>(differences.size()))) - 1;
  std::nth_element(differences.begin(), differences.begin() + static_cast<std::ptrdiff_t>(rank), differences.end());
  result.p99 = differences[rank];
  return result;
}

std::vector<size_t> RecomputedAtFirst(const AlgorithmConfig& algorithm, int64_t step, size_t size) {
  constexpr size_t kOneIn = 16;
  const size_t stride = algorithm.old_log_prob_source() == "trainer" ? 1 : kOneIn;
  std::vector<size_t> positions;
  for (size_t i = static_cast<size_t>(step) % std::max<size_t>(1, std::min(stride, size)); i < size; i += stride) {
    positions.push_back(i);
  }
  return positions;
}

bool AgreeClosely(const LogProbDifference& difference) { return difference.tokens > 0 && difference.mean <= 1e-4; }

void AddLogProbMetrics(const LogProbDifference& difference, Metrics* metrics) {
  metrics->Set("rollout/log_prob_diff_mean", difference.mean);
  metrics->Set("rollout/log_prob_diff_p99", difference.p99);
  metrics->Set("rollout/log_prob_diff_max", difference.max);
}

absl::Status BatchAnnotator::Annotate(int64_t step, std::vector<Experience>* batch, Metrics* metrics) {
  const float temperature = config_.rollout().temperature();
  const std::vector<size_t> all = AllOf(batch->size());
  const std::vector<const TokenSequence*> sequences = SequencesOf(*batch, all);

  using Values = std::vector<std::vector<float>>;
  double reference_seconds = 0, values_seconds = 0, log_probs_seconds = 0;
  // What the run does not use stays empty.
  const bool in_turn = memory_.forwards_in_turn();
  const auto start = [in_turn](double* seconds, auto work) { return SideBySide(seconds, work, in_turn); };
  auto values = start(&values_seconds, [&]() -> absl::StatusOr<Values> {
    if (!UsesCritic(config_)) return Values(sequences.size());
    QUARTET_ASSIGN_OR_RETURN(Values all, services_.critic_trainer->Values(sequences));
    QUARTET_RETURN_IF_ERROR(memory_.RestCritic());
    return all;
  });
  auto reference = start(&reference_seconds, [&]() -> absl::StatusOr<Values> {
    if (!UsesReference(config_)) return Values(sequences.size());
    if (ReferenceIsBase(config_)) {
      return services_.policy_trainer->LogProbs(temperature, sequences, /*without_adapters=*/true);
    }
    return services_.scorer->ReferenceLogProbs(temperature, sequences);
  });
  const std::vector<size_t> first = RecomputedAtFirst(config_.algorithm(), step, batch->size());
  auto log_probs = start(&log_probs_seconds, [&] { return Recompute(*batch, first); });
  // All that has begun is waited for before any error is returned: it uses what lies on this stack.
  auto values_done = values.get();
  if (in_turn) QUARTET_RETURN_IF_ERROR(values_done.status());
  auto reference_done = reference.get();
  if (in_turn) QUARTET_RETURN_IF_ERROR(reference_done.status());
  auto log_probs_done = log_probs.get();
  QUARTET_RETURN_IF_ERROR(values_done.status());
  QUARTET_RETURN_IF_ERROR(reference_done.status());
  QUARTET_RETURN_IF_ERROR(log_probs_done.status());

  Take(*reference_done, all, &Experience::reference_log_probs, batch);
  Take(*values_done, all, &Experience::values, batch);
  const Stopwatch others;
  QUARTET_RETURN_IF_ERROR(TakeLogProbs(step, first, *std::move(log_probs_done), batch, metrics));
  if (UsesReference(config_)) metrics->Set("time/reference", reference_seconds);
  metrics->Set("time/values", values_seconds);
  metrics->Set("time/log_probs", log_probs_seconds + others.Seconds());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<float>>> BatchAnnotator::Recompute(const std::vector<Experience>& batch,
                                                                          const std::vector<size_t>& positions) {
  return services_.policy_trainer->LogProbs(config_.rollout().temperature(), SequencesOf(batch, positions));
}

absl::Status BatchAnnotator::TakeLogProbs(int64_t step, const std::vector<size_t>& positions,
                                          std::vector<std::vector<float>> recomputed, std::vector<Experience>* batch,
                                          Metrics* metrics) {
  Take(recomputed, positions, &Experience::log_probs, batch);
  LogProbDifference difference = CompareLogProbs(*batch, positions);
  QUARTET_RETURN_IF_ERROR(CheckLogProbs(step, difference));
  std::vector<size_t> others;
  for (size_t i = 0; i < batch->size(); ++i) {
    if (!std::binary_search(positions.begin(), positions.end(), i)) others.push_back(i);
  }
  // With "rollout" the trainer's are of use to the KL alone.
  const bool needed = config_.algorithm().old_log_prob_source() != "rollout" || UsesReference(config_);
  const bool agree = AgreeClosely(difference) || !needed;
  if (!others.empty() && !agree) {
    if (!has_said_difference_ && difference.tokens > 0) {
      has_said_difference_ = true;
      view_.Print(absl::StrFormat(
          "log-probabilities of the policy trainer and the rollout differ by %.2g on average: the trainer's are taken, "
          "of all sequences",
          difference.mean));
    }
    QUARTET_ASSIGN_OR_RETURN(recomputed, Recompute(*batch, others));
    Take(recomputed, others, &Experience::log_probs, batch);
    difference = CompareLogProbs(*batch, AllOf(batch->size()));
    QUARTET_RETURN_IF_ERROR(CheckLogProbs(step, difference));
  } else if (!others.empty()) {
    // Of all, so that none is of another kind than the rest.
    for (Experience& e : *batch) e.log_probs = e.rollout_log_probs;
  }
  AddLogProbMetrics(difference, metrics);
  const size_t computed = others.empty() || !agree ? batch->size() : positions.size();
  metrics->Set("policy/log_probs_recomputed",
               static_cast<double>(computed) / static_cast<double>(std::max<size_t>(1, batch->size())));
  return absl::OkStatus();
}

// The policy that trains and the one that generated must be the same.
absl::Status BatchAnnotator::CheckLogProbs(int64_t step, const LogProbDifference& difference) const {
  const double limit = config_.train().max_log_prob_diff_mean();
  if (difference.mean <= limit) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "step %d: log-probabilities of the policy trainer and the rollout differ by %.4g on average (99th percentile "
      "%.4g, largest %.4g), more than train.max_log_prob_diff_mean (%g): they do not have the same weights, or not the "
      "same model",
      step + 1, difference.mean, difference.p99, difference.max, limit));
}

}  // namespace quartet
