// What an engine knows of one call: how its tokens are drawn, where its answers end, what is answered. LibTorch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "core/generation/answer_text.h"
#include "core/tokenizer/tokenizer.h"
#include "proto/rollout.pb.h"
#include "rollout/engine/engine.h"
#include "rollout/engine/sampling/prompt_log_probs.h"
#include "rollout/engine/sampling/sampler.h"
#include "rollout/engine/scheduling/scheduler.h"

namespace quartet {

// One thread; what is const: any.
class RunningCall {
 public:
  // For checked parameters. Answers end with one of `stop_token_ids` and the call's own. `tokenizer` outlives it, and
  // is null only where the call has no stop strings.
  RunningCall(const GenerationTask& task, const std::vector<int32_t>& stop_token_ids, const Tokenizer* tokenizer);

  const SamplingParams& sampling() const { return *sampling_; }
  const SamplingRule& rule() const { return rule_; }

  // The tokens that the next one of `sequence` depends on.
  SamplingHistory HistoryOf(const Sequence& sequence) const;
  uint64_t NoiseKeyOf(const Sequence& sequence) const;

  // Appends a token that was drawn under the weights `version`. Where the sequence ends with it: why.
  std::optional<GeneratedSequence::FinishReason> Append(SampledToken token, uint64_t version, Sequence* sequence) const;
  // The newest token, where they are streamed.
  std::optional<GeneratedTokens> Streamed(const Sequence& sequence) const;
  GeneratedSequence Describe(const Sequence& sequence, GeneratedSequence::FinishReason reason) const;

  int64_t sequences = 0;  // that have not ended
  PromptLogProbs prompts;

 private:
  std::shared_ptr<const SamplingParams> sampling_;
  SamplingRule rule_;
  bool stream_tokens_;
  absl::flat_hash_set<int32_t> stop_tokens_;
  std::vector<int32_t> stop_token_list_;           // the same
  std::shared_ptr<const AnswerTextOptions> text_;  // null where no stop string is looked for
  const Tokenizer* tokenizer_;
};

}  // namespace quartet
