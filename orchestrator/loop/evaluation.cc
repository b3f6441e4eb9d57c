#include "orchestrator/loop/evaluation.h"

#include <filesystem>

#include "core/base/status_macros.h"

namespace quartet {

std::string DecodeResponse(const TokenSequence& tokens, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (int i = 0; i < tokens.ids_size(); ++i) {
    if (tokens.action_mask(i)) ids.push_back(tokens.ids(i));
  }
  return tokenizer.Decode(ids, /*skip_special_tokens=*/true);
}

bool HasRules(const RewardConfig& reward) {
  for (const RewardSource& source : reward.source()) {
    if (!source.rule().empty()) return true;
  }
  return false;
}

absl::StatusOr<std::optional<EvaluationSet>> LoadEvaluationSet(const RunConfig& config, const Tokenizer& tokenizer) {
  if (config.eval().data().empty()) return std::nullopt;
  EvaluationSet set;
  set.name = std::filesystem::path(config.eval().data(0)).stem().string();
  QUARTET_ASSIGN_OR_RETURN(set.prompts, LoadPrompts({config.eval().data(0), "eval.data"}, config.data(),
                                                    config.eval().max_samples(), HasRules(config.reward()), tokenizer));
  return set;
}

absl::StatusOr<EvaluationResult> Evaluate(const RunConfig& config, const EvaluationSet& set, uint64_t policy_version,
                                          const Tokenizer& tokenizer, Services& services,
                                          const ProgressFunction& progress) {
  // 1. One answer a prompt. The seed is the same each time: a change of the score is a change of the policy.
  GenerateHeader header;
  header.set_policy_version(policy_version);
  SamplingParams* sampling = header.mutable_sampling();
  sampling->set_temperature(config.eval().temperature());
  sampling->set_top_p(1);
  sampling->set_top_k(-1);
  sampling->set_max_new_tokens(config.rollout().generate_max_len());
  sampling->set_min_tokens(config.rollout().min_tokens());
  *sampling->mutable_stop_token_ids() = config.rollout().stop_token_ids();
  sampling->set_seed(config.seed());
  sampling->set_n_samples(1);
  std::vector<Prompt> prompts(set.prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    prompts[i].set_index(i);
    prompts[i].mutable_ids()->Assign(set.prompts[i].ids.begin(), set.prompts[i].ids.end());
  }
  QUARTET_ASSIGN_OR_RETURN(const std::vector<GeneratedSequence> answers,
                           services.rollout->Generate(header, prompts, progress));

  // 2. What they are worth.
  std::vector<ScoreItem> items(answers.size());
  for (size_t i = 0; i < items.size(); ++i) {
    *items[i].mutable_tokens() = answers[i].tokens();
    items[i].mutable_tokens()->set_index(i);
    items[i].set_response(DecodeResponse(answers[i].tokens(), tokenizer));
    items[i].set_label(set.prompts[i].label);
    items[i].set_truncated(answers[i].finish_reason() == GeneratedSequence::LENGTH);
  }
  QUARTET_ASSIGN_OR_RETURN(const std::vector<ScoreReply> scores, services.scorer->Score(items));

  // 3. The share that is right.
  EvaluationResult result;
  int64_t right = 0;
  for (const ScoreReply& score : scores) {
    bool passes = true;
    for (const RewardSource& source : config.reward().source()) {
      if (source.rule().empty()) continue;
      const std::string& name = source.name().empty() ? source.rule() : source.name();
      const auto part = score.parts().find(name);
      if (part == score.parts().end()) {
        return absl::InternalError("the scorer's reply has no part \"" + name + "\"");
      }
      passes = passes && part->second >= 1;
    }
    right += passes;
    result.mean_reward += score.reward() / static_cast<double>(scores.size());
  }
  if (HasRules(config.reward())) {
    result.pass_at_1 = static_cast<double>(right) / static_cast<double>(scores.size());
  }
  return result;
}

}  // namespace quartet
