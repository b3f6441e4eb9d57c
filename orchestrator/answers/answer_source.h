// Where the answers to a run's prompts come from.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/run_folder/records/metrics.h"
#include "orchestrator/answers/answer.h"
#include "proto/rollout.pb.h"

namespace quartet {

// What answers are for: where they are of random numbers of their own the header says so.
struct DrawPlace {
  int64_t step = 0;
  std::string set;  // of held-out prompts; "": what the step learns from
};

// Told of an answer; an error of it ends the drawing.
using AnswerFunction = std::function<absl::Status(const PromptAnswer&)>;

// One thread.
class AnswerSource {
 public:
  virtual ~AnswerSource() = default;

  // header.sampling().n_samples() answers to each prompt, by exactly the policy header.policy_version(): those of the
  // `first` prompts (at most all) to have all of theirs; the others are given up. By prompt (in the order of
  // `prompts`), then by sample. `on_answer` is told of each answer that will be returned as soon as that is known, from
  // the thread of the caller. What is drawn follows from the header and the prompts, but which prompts are first.
  virtual absl::StatusOr<std::vector<PromptAnswer>> Draw(const DrawPlace& place, const GenerateHeader& header,
                                                         const std::vector<const PromptRecord*>& prompts, int64_t first,
                                                         const AnswerFunction& on_answer) = 0;

  // Whether all answers of a draw come within the time of one call of a service (train.call_timeout_seconds).
  virtual bool comes_in_a_call() const { return true; }
  // Whether some of the answers may have an error in place of what was drawn.
  virtual bool may_drop() const { return false; }

  // What there is to say of the answers since this was last called.
  virtual void TakeMetrics(Metrics*) {}
  // Likewise what a person should know of them.
  virtual std::vector<std::string> TakeWarnings() { return {}; }
};

}  // namespace quartet
