#include "rollout/engine/sampling/sampling_rule.h"

namespace quartet {

SamplingRule MakeSamplingRule(const SamplingParams& sampling) {
  SamplingRule rule;
  rule.temperature = sampling.temperature();
  rule.top_k = sampling.top_k();
  rule.top_p = sampling.top_p();
  rule.min_p = sampling.min_p();
  rule.repetition_penalty = sampling.has_repetition_penalty() ? sampling.repetition_penalty() : 1;
  rule.presence_penalty = sampling.presence_penalty();
  rule.frequency_penalty = sampling.frequency_penalty();
  rule.logit_bias.assign(sampling.logit_bias().begin(), sampling.logit_bias().end());
  rule.alternatives = sampling.logprobs();
  rule.raw_log_probs = sampling.raw_logprobs();
  return rule;
}

}  // namespace quartet
