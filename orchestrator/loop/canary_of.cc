#include "orchestrator/loop/canary_of.h"

#include <algorithm>

#include "orchestrator/data/answers.h"

namespace quartet {

Canary CanaryOf(const std::vector<Experience>& batch, const RewardConfig& reward, const Tokenizer& tokenizer) {
  Canary canary;
  const size_t count = std::min(kCanarySequences, batch.size());
  for (size_t i = 0; i < count; ++i) {
    const Experience& e = batch[i * batch.size() / count];
    canary.sequences.push_back(e.tokens);
    GeneratedSequence answer;
    *answer.mutable_tokens() = e.tokens;
    answer.set_finish_reason(e.truncated ? GeneratedSequence::LENGTH : GeneratedSequence::STOP);
    canary.items.push_back(MakeScoreItem(i, answer, *e.prompt, reward, tokenizer));
    Prompt& prompt = canary.prompts.emplace_back();
    prompt.set_index(i);
    prompt.mutable_ids()->Assign(e.prompt->ids.begin(), e.prompt->ids.end());
  }
  return canary;
}

}  // namespace quartet
