// Draws what a step learns from: prompts, answers, and what they are worth.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/clients/service_clients.h"
#include "core/run_folder/records/metrics.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/answers/answer_source.h"
#include "orchestrator/data/prompts.h"
#include "orchestrator/loop/experience/experience.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Answers are scored while others are generated. With rollout.over_sampling_batch_size above rollout_batch_size the
// first groups (all answers to one prompt) to finish are taken; with algorithm.dynamic_sampling groups without signal
// are redrawn. Which batch comes at a position of the prompts follows from the seed, unless it depends on which groups
// are first. One thread; what it is made with outlives it.
class BatchSampler {
 public:
  // Told what is under way ("generate", "generate, draw 2"), how many answers it is of, and then how many are there;
  // and, at once, what of a draw a person has to know. Errors of `warn` end it.
  struct Progress {
    std::function<void(const std::string& phase, int64_t total)> begin;
    std::function<void(int64_t done)> done;
    std::function<absl::Status(const std::string& warning)> warn;
  };

  // `drawn`: prompts that the steps before have taken.
  BatchSampler(const RunConfig& config, Prompts& prompts, const Tokenizer& tokenizer, AnswerSource& answers,
               ScorerClient& scorer, int64_t drawn, Progress progress);

  // Metrics: time/generate and time/score, those of the answers' source, and what was dropped. At most
  // rollout_batch_size groups, in the order in which prompts were drawn, with rewards as far as they are known before
  // advantages: length penalties are in them. Less where answers could not be scored (reward.on_error "drop") or
  // episodes failed (agent.on_error "drop"), of which progress.warn is told draw by draw. FAILED_PRECONDITION where
  // that is every answer of a draw, or dynamic_sampling.max_num_gen_batches do not suffice.
  absl::StatusOr<std::vector<Experience>> Draw(int64_t step, uint64_t policy_version, Metrics* metrics);

  int64_t drawn() const { return drawn_; }

 private:
  struct Group;
  absl::StatusOr<std::vector<Group>> GenerateAndScore(int64_t step, int64_t draw, uint64_t policy_version);

  const RunConfig& config_;
  Prompts& prompts_;
  const Tokenizer& tokenizer_;
  AnswerSource& answers_;
  ScorerClient& scorer_;
  int64_t drawn_;
  Progress progress_;
  // Of the batch under way: generating, and waiting for scores after the last answer.
  double generate_seconds_ = 0, score_seconds_ = 0;
};

}  // namespace quartet
