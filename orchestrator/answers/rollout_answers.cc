#include "orchestrator/answers/rollout_answers.h"

#include <map>
#include <utility>

#include "core/base/status_macros.h"

namespace quartet {
namespace {

PromptAnswer AnswerOf(const GeneratedSequence& sequence, const Tokenizer& tokenizer) {
  const bool truncated = sequence.finish_reason() == GeneratedSequence::LENGTH;
  return {.prompt = sequence.prompt_index(),
          .sample = static_cast<uint64_t>(sequence.sample()),
          .sequences = {sequence.tokens()},
          .log_probs = {sequence.log_probs().begin(), sequence.log_probs().end()},
          .sampled_log_probs = {sequence.sampled_log_probs().begin(), sequence.sampled_log_probs().end()},
          .response = DecodeResponse(sequence.tokens(), tokenizer),
          .truncated = truncated,
          .overlong = truncated};
}

}  // namespace

absl::StatusOr<std::vector<PromptAnswer>> RolloutAnswers::Draw(const DrawPlace& /*place*/, const GenerateHeader& header,
                                                               const std::vector<const PromptRecord*>& prompts,
                                                               int64_t first, const AnswerFunction& on_answer) {
  std::vector<Prompt> asked(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    asked[i].set_index(i);
    asked[i].mutable_ids()->Assign(prompts[i]->ids.begin(), prompts[i]->ids.end());
  }
  // By prompt and sample: an answer is decoded once, when it is told of.
  std::map<std::pair<uint64_t, uint64_t>, PromptAnswer> told;
  const auto tell = [&](const GeneratedSequence& sequence) {
    return on_answer(told[{sequence.prompt_index(), sequence.sample()}] = AnswerOf(sequence, tokenizer_));
  };
  QUARTET_RETURN_IF_ERROR(rollout_.GenerateFirst(header, asked, first, tell).status());
  std::vector<PromptAnswer> answers;
  answers.reserve(told.size());
  for (auto& [place, answer] : told) answers.push_back(std::move(answer));
  return answers;
}

}  // namespace quartet
