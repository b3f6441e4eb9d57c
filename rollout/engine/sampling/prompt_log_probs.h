// The log-probabilities of the prompts of one call, where SamplingParams.prompt_logprobs asks for it. LibTorch-free.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/rollout.pb.h"
#include "rollout/engine/sampling/sampler.h"

namespace quartet {

// Adds tokens and their log-probabilities to `out`.
void DescribeAlternatives(const std::vector<std::pair<int32_t, float>>& alternatives, TokenAlternatives* out);

// Of each prompt's tokens from the second one on, in their order, as far as they have been computed. One thread.
class PromptLogProbs {
 public:
  // The position of the first token of a prompt of which nothing is known, at least 1.
  int64_t next(uint64_t prompt_index) const;

  // What a forward found of the token at `position`. Nothing happens where that is not the next one: it has been found
  // already, before a preemption or by another sample of the prompt, or one before it could not be scored. The error of
  // `scored`, with prompt and token.
  absl::Status Take(uint64_t prompt_index, int64_t position, absl::StatusOr<SampledToken> scored);

  // Adds what is known of a prompt to a GeneratedTokens or a GeneratedSequence.
  template <typename Message>
  void Describe(uint64_t prompt_index, Message* out) const {
    const auto found = prompts_.find(prompt_index);
    if (found == prompts_.end()) return;
    for (const SampledToken& token : found->second) {
      out->add_prompt_log_probs(token.log_prob);
      if (!token.alternatives.empty()) DescribeAlternatives(token.alternatives, out->add_prompt_alternatives());
    }
  }

 private:
  absl::flat_hash_map<uint64_t, std::vector<SampledToken>> prompts_;
};

}  // namespace quartet
