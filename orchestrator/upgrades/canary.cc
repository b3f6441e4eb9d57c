#include "orchestrator/upgrades/canary.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/config/services.h"
#include "orchestrator/answers/answer.h"

namespace quartet {
namespace {

// Of a greedy answer: enough for weights that are others to show.
constexpr int32_t kCanaryTokens = 32;

absl::StatusOr<CanaryNumbers> GreedyAnswers(const RunConfig& config, RolloutClient& rollout, const Canary& canary,
                                            uint64_t policy_version) {
  GenerateHeader header;
  header.set_policy_version(policy_version);
  SamplingParams* sampling = header.mutable_sampling();
  *sampling = AnswerLimits(config.rollout());
  sampling->set_temperature(0);
  sampling->set_top_p(1);
  sampling->set_n_samples(1);
  sampling->set_max_new_tokens(std::min(sampling->max_new_tokens(), kCanaryTokens));
  sampling->set_min_tokens(std::min(sampling->min_tokens(), sampling->max_new_tokens()));
  QUARTET_ASSIGN_OR_RETURN(const std::vector<GeneratedSequence> answers, rollout.Generate(header, canary.prompts));
  CanaryNumbers result = {.name = "greedy answers' log-probabilities"};
  for (size_t i = 0; i < answers.size(); ++i) {
    const TokenSequence& tokens = answers[i].tokens();
    result.numbers.emplace_back(answers[i].log_probs().begin(), answers[i].log_probs().end());
    result.tokens.emplace_back(tokens.ids().begin() + canary.prompts[i].ids_size(), tokens.ids().end());
  }
  return result;
}

// Over all tokens; one that only one side has differs by its own size.
struct Difference {
  double sum = 0, size = 0;
  int64_t count = 0;
};

void AddDifference(const CanaryNumbers& before, const CanaryNumbers& after, size_t sequence, Difference* difference) {
  const std::vector<float>&a = before.numbers[sequence], &b = after.numbers[sequence];
  const size_t both = std::min(a.size(), b.size());
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const double was = i < a.size() ? a[i] : 0, is = i < b.size() ? b[i] : 0;
    difference->sum += std::abs(was - is);
    difference->size += std::abs(was);
    ++difference->count;
    // After it the two are answers to different things.
    if (!before.tokens.empty() && (i >= both || before.tokens[sequence][i] != after.tokens[sequence][i])) return;
  }
}

}  // namespace

absl::StatusOr<std::vector<CanaryNumbers>> AskCanary(const std::string& service, const RunConfig& config,
                                                     Services& services, const Canary& canary,
                                                     uint64_t policy_version) {
  std::vector<CanaryNumbers> all;
  std::vector<const TokenSequence*> sequences;
  for (const TokenSequence& sequence : canary.sequences) sequences.push_back(&sequence);
  const double temperature = config.rollout().temperature();
  const auto add = [&all](const std::string& name, std::vector<std::vector<float>> numbers, bool relative) {
    all.push_back({.name = name, .numbers = std::move(numbers), .tokens = {}, .relative = relative});
  };
  if (service == "rollout") {
    QUARTET_ASSIGN_OR_RETURN(CanaryNumbers answers, GreedyAnswers(config, *services.rollout, canary, policy_version));
    all.push_back(std::move(answers));
  } else if (service == "policy_trainer") {
    QUARTET_ASSIGN_OR_RETURN(auto log_probs,
                             services.policy_trainer->LogProbs(static_cast<float>(temperature), sequences));
    add("log-probabilities", std::move(log_probs), false);
  } else if (service == "critic_trainer") {
    QUARTET_ASSIGN_OR_RETURN(auto values, services.critic_trainer->Values(sequences));
    add("values", std::move(values), true);
  } else {
    if (!config.reward().source().empty()) {
      QUARTET_ASSIGN_OR_RETURN(const std::vector<ScoreReply> scores, services.scorer->Score(canary.items));
      std::vector<std::vector<float>> rewards;
      for (const ScoreReply& score : scores) {
        if (!score.error().empty()) return absl::UnavailableError("a reward could not be had: " + score.error());
        rewards.push_back({score.reward()});
      }
      add("rewards", std::move(rewards), true);
    }
    if (ReferenceOf(config).has_value()) {
      QUARTET_ASSIGN_OR_RETURN(auto log_probs,
                               services.scorer->ReferenceLogProbs(static_cast<float>(temperature), sequences));
      add("the reference's log-probabilities", std::move(log_probs), false);
    }
  }
  return all;
}

absl::StatusOr<std::string> CompareCanary(const std::vector<CanaryNumbers>& before,
                                          const std::vector<CanaryNumbers>& after, double bound) {
  std::vector<std::string> said;
  bool agree = before.size() == after.size();
  for (size_t kind = 0; kind < before.size() && kind < after.size(); ++kind) {
    Difference difference;
    for (size_t i = 0; i < before[kind].numbers.size(); ++i) {
      AddDifference(before[kind], after[kind], i, &difference);
    }
    const double count = static_cast<double>(std::max<int64_t>(1, difference.count));
    const double mean = difference.sum / count / (before[kind].relative ? std::max(1.0, difference.size / count) : 1.0);
    agree = agree && mean <= bound;  // false of what is not a number, too
    said.push_back(absl::StrFormat("%s differ by %.2g on average over %d", before[kind].name, mean, difference.count));
  }
  std::string text = absl::StrJoin(said, "; ");
  if (agree) return text;
  return absl::FailedPreconditionError(absl::StrFormat(
      "it answers otherwise than the one before it: %s; train.max_upgrade_diff_mean allows %g", text, bound));
}

}  // namespace quartet
