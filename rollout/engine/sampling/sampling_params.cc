#include "rollout/engine/sampling/sampling_params.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rollout/engine/sampling/stop_strings.h"

namespace quartet {
namespace {

constexpr int32_t kMostAlternatives = 20;
// Of one prompt, so that its message stays well below what gRPC takes.
constexpr int64_t kMostPromptLogProbs = int64_t{1} << 18;

template <typename Value>
absl::Status Refuse(const std::string& field, const Value& value, const std::string& allowed) {
  return absl::InvalidArgumentError(absl::StrCat("sampling.", field, " is ", value, "; allowed: ", allowed));
}

}  // namespace

absl::Status CheckSamplingParams(const SamplingParams& sampling, int64_t vocab_size, bool reads_text) {
  if (!(sampling.temperature() >= 0) || !std::isfinite(sampling.temperature())) {
    return Refuse("temperature", sampling.temperature(), "finite and at least 0");
  }
  if (sampling.top_k() < -1) return Refuse("top_k", sampling.top_k(), "-1 or 0 (off), or at least 1");
  if (!(sampling.top_p() > 0 && sampling.top_p() <= 1)) {
    return Refuse("top_p", sampling.top_p(), "above 0 and at most 1 (off)");
  }
  if (!(sampling.min_p() >= 0 && sampling.min_p() <= 1)) {
    return Refuse("min_p", sampling.min_p(), "at least 0 (off) and at most 1");
  }
  if (sampling.max_new_tokens() < (sampling.has_prompt_logprobs() ? 0 : 1)) {
    return Refuse("max_new_tokens", sampling.max_new_tokens(), "at least 1, or 0 with prompt_logprobs");
  }
  if (sampling.min_tokens() < 0 || sampling.min_tokens() > sampling.max_new_tokens()) {
    return Refuse("min_tokens", sampling.min_tokens(),
                  absl::StrCat("0 to max_new_tokens, which is ", sampling.max_new_tokens()));
  }
  if (sampling.n_samples() < 1) return Refuse("n_samples", sampling.n_samples(), "at least 1");
  if (sampling.has_repetition_penalty() &&
      (!(sampling.repetition_penalty() > 0) || !std::isfinite(sampling.repetition_penalty()))) {
    return Refuse("repetition_penalty", sampling.repetition_penalty(), "finite and above 0; 1 is off");
  }
  if (!(std::abs(sampling.presence_penalty()) <= 2)) {
    return Refuse("presence_penalty", sampling.presence_penalty(), "-2 to 2");
  }
  if (!(std::abs(sampling.frequency_penalty()) <= 2)) {
    return Refuse("frequency_penalty", sampling.frequency_penalty(), "-2 to 2");
  }
  if (sampling.logprobs() < 0 || sampling.logprobs() > kMostAlternatives) {
    return Refuse("logprobs", sampling.logprobs(), absl::StrCat("0 to ", kMostAlternatives));
  }
  if (sampling.prompt_logprobs() < 0 || sampling.prompt_logprobs() > kMostAlternatives) {
    return Refuse("prompt_logprobs", sampling.prompt_logprobs(), absl::StrCat("0 to ", kMostAlternatives));
  }
  for (const int32_t id : sampling.stop_token_ids()) {
    if (id < 0 || id >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling.stop_token_ids holds ", id, "; allowed: 0 to ", vocab_size - 1));
    }
  }
  for (const auto& [id, bias] : sampling.logit_bias()) {
    if (id < 0 || id >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling.logit_bias holds token ", id, "; allowed: 0 to ", vocab_size - 1));
    }
    if (!(std::abs(bias) <= 100)) return Refuse(absl::StrCat("logit_bias[", id, "]"), bias, "-100 to 100");
  }
  if (sampling.stop_size() > StopStrings::kMostStrings) {
    return Refuse("stop", absl::StrCat("a list of ", sampling.stop_size(), " strings"),
                  absl::StrCat("at most ", StopStrings::kMostStrings));
  }
  int64_t stop_bytes = 0;
  for (const std::string& stop : sampling.stop()) stop_bytes += static_cast<int64_t>(stop.size());
  if (stop_bytes > StopStrings::kMostBytes) {
    return Refuse("stop", absl::StrCat(stop_bytes, " bytes of strings"),
                  absl::StrCat("at most ", StopStrings::kMostBytes));
  }
  for (const std::string& stop : sampling.stop()) {
    if (stop.empty()) return absl::InvalidArgumentError("sampling.stop holds an empty string; allowed: any other");
    if (!reads_text) {
      return absl::InvalidArgumentError(absl::StrCat("sampling.stop holds \"", stop,
                                                     "\", but the model's folder has no tokenizer to read text with"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPrompt(const SamplingParams& sampling, uint64_t prompt_index, const std::vector<int32_t>& ids,
                         int64_t vocab_size) {
  const auto log_probs = static_cast<int64_t>(ids.size()) * (1 + int64_t{sampling.prompt_logprobs()});
  if (sampling.has_prompt_logprobs() && log_probs > kMostPromptLogProbs) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt ", prompt_index, ": ", ids.size(), " ids with sampling.prompt_logprobs ", sampling.prompt_logprobs(),
        " make ", log_probs, " log-probabilities; allowed: at most ", kMostPromptLogProbs));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompt ", prompt_index, ": ids[", i, "] is ", ids[i], "; allowed: 0 to ", vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

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
