#include "core/generation/sampling_params.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/generation/stop_strings.h"
#include "core/service/rpc/message_size.h"

namespace quartet {
namespace {

constexpr int32_t kMostAlternatives = 20;
// Of one call, so that its messages to the ranks stay well below what gRPC takes.
constexpr int kMostStopTokens = 4096;
constexpr int kMostBiases = 32768;
// Of one answer: what the pipe between ranks takes.
constexpr int64_t kMostAnswerBytes = kMaxMessageBytes - 4096;
// What of an answer does not grow with its tokens: a stop string, numbers, tags and lengths.
constexpr int64_t kOtherBytes = 32 << 10;

template <typename Value>
absl::Status Refuse(const std::string& field, const Value& value, const std::string& allowed) {
  return absl::InvalidArgumentError(absl::StrCat("sampling.", field, " is ", value, "; allowed: ", allowed));
}

int64_t VarintBytes(int64_t value) {
  int64_t bytes = 1;
  for (; value >= 128; value /= 128) ++bytes;
  return bytes;
}

// What is told of a token of the prompt, and of one of the answer.
struct TokenBytes {
  int64_t of_prompt;
  int64_t of_answer;
};

TokenBytes BytesOf(const SamplingParams& sampling, int64_t vocab_size) {
  const int64_t id = VarintBytes(vocab_size - 1);
  // Tags and lengths of a TokenAlternatives and of its two lists; and these.
  const auto alternatives = [&](int64_t count) { return count == 0 ? 0 : 9 + count * (id + 4); };
  // An id, its place in the mask, and log-probabilities of 4 bytes each.
  int64_t of_prompt = id + 1;
  if (sampling.has_prompt_logprobs()) of_prompt += 4 + alternatives(sampling.prompt_logprobs());
  constexpr int64_t kVersionBytes = 4;
  return {of_prompt, id + 1 + 4 + 4 + kVersionBytes + alternatives(sampling.logprobs())};
}

}  // namespace

int64_t AnswerBytes(const SamplingParams& sampling, int64_t prompt_len, int64_t new_tokens, int64_t vocab_size) {
  const TokenBytes bytes = BytesOf(sampling, vocab_size);
  return kOtherBytes + prompt_len * bytes.of_prompt + new_tokens * bytes.of_answer;
}

int64_t MostNewTokens(const SamplingParams& sampling, int64_t prompt_len, int64_t vocab_size) {
  const TokenBytes bytes = BytesOf(sampling, vocab_size);
  const int64_t left = kMostAnswerBytes - AnswerBytes(sampling, prompt_len, 0, vocab_size);
  return left < 0 ? -1 : left / bytes.of_answer;
}

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
  if (sampling.stop_token_ids_size() > kMostStopTokens) {
    return Refuse("stop_token_ids", absl::StrCat("a list of ", sampling.stop_token_ids_size(), " ids"),
                  absl::StrCat("at most ", kMostStopTokens));
  }
  if (sampling.logit_bias_size() > static_cast<size_t>(kMostBiases)) {
    return Refuse("logit_bias", absl::StrCat("for ", sampling.logit_bias_size(), " tokens"),
                  absl::StrCat("at most ", kMostBiases));
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
  const int64_t most = MostNewTokens(sampling, static_cast<int64_t>(ids.size()), vocab_size);
  if (sampling.max_new_tokens() > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt ", prompt_index, ": ", ids.size(), " ids with sampling.prompt_logprobs ",
                     sampling.prompt_logprobs(), ", max_new_tokens ", sampling.max_new_tokens(), " and logprobs ",
                     sampling.logprobs(), " do not fit into an answer of ", kMostAnswerBytes, " bytes",
                     most < 0 ? "" : absl::StrCat("; allowed: max_new_tokens at most ", most)));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompt ", prompt_index, ": ids[", i, "] is ", ids[i], "; allowed: 0 to ", vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

}  // namespace quartet
