// The log-probabilities of the prompts of one call, where SamplingParams.prompt_logprobs asks for it. LibTorch-free.
#pragma once

#include <cstddef>
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

// Of each prompt's tokens from the second one on, in their order, as far as they have been computed: those of a prompt
// by one version of the weights. One thread.
class PromptLogProbs {
 public:
  // The position of the first token of a prompt of which nothing is known, at least 1.
  int64_t next(uint64_t prompt_index) const;

  // What a forward under the weights `version` found of the token at `position` of a prompt of `prompt_len` tokens.
  // Nothing happens where that is not the next one: it has been found already, before a preemption or by another sample
  // of the prompt, or one before it could not be scored. The error of `scored`, with prompt and token.
  absl::Status Take(uint64_t prompt_index, int64_t prompt_len, int64_t position, uint64_t version,
                    absl::StatusOr<SampledToken> scored);

  // The weights are others now: prompts of which only a part is known begin anew.
  void ForgetParts();

  // Adds what is known of a prompt to a GeneratedTokens or a GeneratedSequence.
  template <typename Message>
  void Describe(uint64_t prompt_index, Message* out) const {
    const auto found = prompts_.find(prompt_index);
    if (found == prompts_.end()) return;
    out->set_prompt_policy_version(found->second.version);
    for (const SampledToken& token : found->second.tokens) {
      out->add_prompt_log_probs(token.log_prob);
      if (!token.alternatives.empty()) DescribeAlternatives(token.alternatives, out->add_prompt_alternatives());
    }
  }

 private:
  struct Known {
    uint64_t version = 0;
    size_t all = 0;                    // tokens there will be
    std::vector<SampledToken> tokens;  // never empty
  };
  absl::flat_hash_map<uint64_t, Known> prompts_;
};

}  // namespace quartet
