#include "rollout/engine/running_call.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/generation/stop_strings.h"
#include "rollout/engine/sampling/sampling_rule.h"

namespace quartet {

RunningCall::RunningCall(const GenerationTask& task, const std::vector<int32_t>& stop_token_ids,
                         const Tokenizer* tokenizer)
    : sampling_(task.sampling),
      rule_(MakeSamplingRule(*task.sampling)),
      stream_tokens_(task.stream_tokens),
      stop_tokens_(stop_token_ids.begin(), stop_token_ids.end()),
      tokenizer_(tokenizer) {
  stop_tokens_.insert(sampling_->stop_token_ids().begin(), sampling_->stop_token_ids().end());
  stop_token_list_.assign(stop_tokens_.begin(), stop_tokens_.end());
  const auto& strings = sampling_->stop();
  if (!strings.empty()) {
    AnswerTextOptions text;
    text.stop = std::make_shared<const StopStrings>(std::vector<std::string>(strings.begin(), strings.end()));
    text.min_tokens = sampling_->min_tokens();
    text_ = std::make_shared<const AnswerTextOptions>(std::move(text));
  }
}

SamplingHistory RunningCall::HistoryOf(const Sequence& sequence) const {
  SamplingHistory history;
  history.prompt = sequence.ids.prompt();
  history.answer = sequence.ids.answer();
  if (static_cast<int64_t>(history.answer.size()) < sampling_->min_tokens()) history.forbidden = stop_token_list_;
  return history;
}

uint64_t RunningCall::NoiseKeyOf(const Sequence& sequence) const {
  return NoiseKey(sampling_->seed(), sequence.prompt_index, sequence.sample, static_cast<int64_t>(sequence.ids.size()));
}

std::optional<GeneratedSequence::FinishReason> RunningCall::Append(SampledToken token, uint64_t version,
                                                                   Sequence* sequence) const {
  sequence->ids.push_back(token.id);
  sequence->log_probs.push_back(token.log_prob);
  sequence->sampled_log_probs.push_back(token.sampled_log_prob);
  sequence->versions.push_back(version);
  if (rule_.alternatives > 0) sequence->alternatives.push_back(std::move(token.alternatives));
  // The text of an answer has no stop token.
  if (stop_tokens_.contains(token.id)) return GeneratedSequence::STOP;
  if (text_ != nullptr) {
    if (sequence->text == nullptr) {
      sequence->text = std::make_unique<AnswerText>(*tokenizer_, sequence->ids.prompt(), text_);
    }
    sequence->text->Read(token.id);
    if (sequence->text->stop_string() != nullptr) return GeneratedSequence::STOP;
  }
  const bool full = static_cast<int64_t>(sequence->log_probs.size()) >= sampling_->max_new_tokens();
  return full ? std::optional(GeneratedSequence::LENGTH) : std::nullopt;
}

std::optional<GeneratedTokens> RunningCall::Streamed(const Sequence& sequence) const {
  if (!stream_tokens_) return std::nullopt;
  GeneratedTokens tokens;
  tokens.set_prompt_index(sequence.prompt_index);
  tokens.set_sample(sequence.sample);
  tokens.add_ids(sequence.ids.back());
  tokens.add_log_probs(sequence.log_probs.back());
  tokens.set_policy_version(sequence.versions.back());
  if (rule_.alternatives > 0) DescribeAlternatives(sequence.alternatives.back(), tokens.add_alternatives());
  if (sequence.log_probs.size() == 1) prompts.Describe(sequence.prompt_index, &tokens);
  return tokens;
}

GeneratedSequence RunningCall::Describe(const Sequence& sequence, GeneratedSequence::FinishReason reason) const {
  GeneratedSequence out;
  out.set_prompt_index(sequence.prompt_index);
  out.set_sample(sequence.sample);
  out.set_finish_reason(reason);
  if (sequence.text != nullptr && sequence.text->stop_string() != nullptr) {
    out.set_stop_string(*sequence.text->stop_string());
  }
  TokenSequence& tokens = *out.mutable_tokens();
  for (const absl::Span<const int32_t> part : {sequence.ids.prompt(), sequence.ids.answer()}) {
    tokens.mutable_ids()->Add(part.begin(), part.end());
  }
  tokens.mutable_action_mask()->Resize(static_cast<int>(sequence.ids.size()), true);
  std::fill_n(tokens.mutable_action_mask()->begin(), sequence.prompt_len, false);
  out.mutable_log_probs()->Add(sequence.log_probs.begin(), sequence.log_probs.end());
  out.mutable_sampled_log_probs()->Add(sequence.sampled_log_probs.begin(), sequence.sampled_log_probs.end());
  out.mutable_policy_versions()->Add(sequence.versions.begin(), sequence.versions.end());
  for (const auto& of_token : sequence.alternatives) DescribeAlternatives(of_token, out.add_alternatives());
  prompts.Describe(sequence.prompt_index, &out);
  return out;
}

}  // namespace quartet
