#include "rollout/engine/sampling/prompt_log_probs.h"

#include "absl/strings/str_cat.h"

namespace quartet {

void DescribeAlternatives(const std::vector<std::pair<int32_t, float>>& alternatives, TokenAlternatives* out) {
  for (const auto& [id, log_prob] : alternatives) {
    out->add_ids(id);
    out->add_log_probs(log_prob);
  }
}

int64_t PromptLogProbs::next(uint64_t prompt_index) const {
  const auto found = prompts_.find(prompt_index);
  return found == prompts_.end() ? 1 : 1 + static_cast<int64_t>(found->second.tokens.size());
}

absl::Status PromptLogProbs::Take(uint64_t prompt_index, int64_t prompt_len, int64_t position, uint64_t version,
                                  absl::StatusOr<SampledToken> scored) {
  if (position != next(prompt_index)) return absl::OkStatus();
  if (!scored.ok()) {
    return absl::Status(scored.status().code(),
                        absl::StrCat("prompt ", prompt_index, ", token ", position, ": ", scored.status().message()));
  }
  Known& known = prompts_[prompt_index];
  known.version = version;
  known.all = static_cast<size_t>(prompt_len - 1);
  known.tokens.push_back(*std::move(scored));
  return absl::OkStatus();
}

void PromptLogProbs::ForgetParts() {
  absl::erase_if(prompts_, [](const auto& prompt) { return prompt.second.tokens.size() < prompt.second.all; });
}

}  // namespace quartet
