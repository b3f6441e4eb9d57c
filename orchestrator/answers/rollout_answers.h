// Answers that the rollout gives to the prompts as they are.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/clients/service_clients.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/answers/answer_source.h"

namespace quartet {

class RolloutAnswers final : public AnswerSource {
 public:
  // Which outlive it.
  RolloutAnswers(RolloutClient* rollout, const Tokenizer* tokenizer) : rollout_(*rollout), tokenizer_(*tokenizer) {}

  absl::StatusOr<std::vector<PromptAnswer>> Draw(const DrawPlace& place, const GenerateHeader& header,
                                                 const std::vector<const PromptRecord*>& prompts, int64_t first,
                                                 const AnswerFunction& on_answer) override;

 private:
  RolloutClient& rollout_;
  const Tokenizer& tokenizer_;
};

}  // namespace quartet
