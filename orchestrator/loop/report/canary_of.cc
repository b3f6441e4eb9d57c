#include "orchestrator/loop/report/canary_of.h"

#include <algorithm>

#include "orchestrator/answers/answer.h"

namespace quartet {

Canary CanaryOf(const std::vector<Experience>& batch, const RewardConfig& reward, const Tokenizer& tokenizer) {
  Canary canary;
  const size_t count = std::min(kCanarySequences, batch.size());
  for (size_t i = 0; i < count; ++i) {
    const Experience& e = batch[i * batch.size() / count];
    canary.sequences.push_back(e.last_sequence());
    canary.items.push_back(
        MakeScoreItem(i, {e.last_sequence(), e.response, e.truncated, e.conversation}, *e.prompt, reward, tokenizer));
    Prompt& prompt = canary.prompts.emplace_back();
    prompt.set_index(i);
    prompt.mutable_ids()->Assign(e.prompt->ids.begin(), e.prompt->ids.end());
  }
  return canary;
}

}  // namespace quartet
