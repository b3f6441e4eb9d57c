#include "orchestrator/agents/run_sampling.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/openai/api_error.h"

namespace quartet {
namespace {

constexpr char kRunDraws[] = ": answers are trained on, and are drawn as the run says";

absl::Status CheckAsked(const OpenAiChat& chat) {
  const SamplingParams& asked = chat.request.header.sampling();
  const auto refuse = [](const char* name, const auto& value, const char* allowed) {
    return ParameterError(name, absl::StrCat("is ", value, "; allowed: ", allowed, kRunDraws));
  };
  if (asked.n_samples() != 1) return refuse("n", asked.n_samples(), "1");
  if (!asked.logit_bias().empty())
    return ParameterError("logit_bias", absl::StrCat("is set; allowed: none", kRunDraws));
  if (asked.min_tokens() != 0) return refuse("min_tokens", asked.min_tokens(), "0");
  if (asked.ignore_eos()) return refuse("ignore_eos", "true", "false");
  if (chat.add_special_tokens) return refuse("add_special_tokens", "true", "false");
  if (chat.request.prompt_logprobs.has_value()) {
    return refuse("prompt_logprobs", *chat.request.prompt_logprobs, "none");
  }
  return absl::OkStatus();
}

std::vector<std::string> SetAside(const SamplingParams& run, const OpenAiChat& chat) {
  const SamplingParams& asked = chat.request.header.sampling();
  const auto penalty = [](const SamplingParams& of) {
    return of.has_repetition_penalty() ? of.repetition_penalty() : 1.0F;
  };
  const std::pair<const char*, bool> differs[] = {
      {"temperature", asked.temperature() != run.temperature()},
      {"top_p", asked.top_p() != run.top_p()},
      {"top_k", std::max(asked.top_k(), 0) != std::max(run.top_k(), 0)},  // -1 is off, too
      {"min_p", asked.min_p() != run.min_p()},
      {"presence_penalty", asked.presence_penalty() != run.presence_penalty()},
      {"frequency_penalty", asked.frequency_penalty() != run.frequency_penalty()},
      {"repetition_penalty", penalty(asked) != penalty(run)},
      {"seed", true},
  };
  std::vector<std::string> names;
  for (const auto& [name, is_other] : differs) {
    if (is_other && chat.named.contains(name)) names.emplace_back(name);
  }
  return names;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> HoldRunSampling(const SamplingParams& run, OpenAiChat* chat) {
  if (absl::Status status = CheckAsked(*chat); !status.ok()) return status;
  std::vector<std::string> set_aside = SetAside(run, *chat);
  SamplingParams& sampling = *chat->request.header.mutable_sampling();
  const SamplingParams asked = std::exchange(sampling, run);
  sampling.set_n_samples(1);
  sampling.set_logprobs(asked.logprobs());
  sampling.mutable_stop()->MergeFrom(asked.stop());
  sampling.mutable_stop_token_ids()->MergeFrom(asked.stop_token_ids());
  chat->max_tokens = std::min(chat->max_tokens.value_or(run.max_new_tokens()), run.max_new_tokens());
  return set_aside;
}

}  // namespace quartet
