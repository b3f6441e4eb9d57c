#include "orchestrator/loop/experience/batch_sampler.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/random.h"
#include "core/base/status_macros.h"
#include "core/base/time/side_by_side.h"
#include "core/base/time/stopwatch.h"
#include "core/rl/rewards.h"
#include "orchestrator/answers/answer.h"

namespace quartet {
namespace {

constexpr uint64_t kGeneratePurpose = 3;

GenerateHeader HeaderOf(const RunConfig& config, int64_t step, int64_t draw, uint64_t policy_version) {
  const RolloutConfig& rollout = config.rollout();
  GenerateHeader header;
  header.set_policy_version(policy_version);
  SamplingParams* sampling = header.mutable_sampling();
  *sampling = AnswerLimits(rollout);
  sampling->set_temperature(rollout.temperature());
  sampling->set_top_p(rollout.top_p());
  sampling->set_top_k(rollout.top_k());
  const auto place = static_cast<uint64_t>(step);
  sampling->set_seed(draw == 0
                         ? Random::Of({config.seed(), kGeneratePurpose, place}).Next()
                         : Random::Of({config.seed(), kGeneratePurpose, place, static_cast<uint64_t>(draw)}).Next());
  sampling->set_n_samples(rollout.n_samples_per_prompt());
  return header;
}

// What is known of an answer before models are asked: `reply` is the scorer's.
absl::StatusOr<Experience> ExperienceOf(const RunConfig& config, std::shared_ptr<const PromptRecord> prompt,
                                        ScoreReply reply, PromptAnswer answer) {
  const AlgorithmConfig& algorithm = config.algorithm();
  if (answer.agent.has_value()) {
    QUARTET_RETURN_IF_ERROR(Prefixed(prompt->place, AddAgentReward(config.reward(), *answer.agent, &reply)));
  }
  Experience e;
  e.prompt = std::move(prompt);
  e.sequences = std::move(answer.sequences);
  e.response = std::move(answer.response);
  e.truncated = answer.truncated;
  e.conversation = std::move(answer.conversation);
  e.excluded = algorithm.overlong_filtering() && answer.overlong;
  e.rollout_log_probs = std::move(answer.log_probs);
  e.sampled_log_probs = std::move(answer.sampled_log_probs);
  e.reward = reply.reward();
  e.token_rewards.assign(reply.token_rewards().begin(), reply.token_rewards().end());
  if (!e.token_rewards.empty() && std::ssize(e.token_rewards) != e.action_tokens()) {
    return absl::InternalError(absl::StrCat("the scorer gave rewards of ", e.token_rewards.size(),
                                            " tokens to an answer of ", e.action_tokens()));
  }
  e.score = reply.score();
  e.reward_parts.insert(reply.parts().begin(), reply.parts().end());
  e.extra_logs.insert(reply.extra_logs().begin(), reply.extra_logs().end());
  if (algorithm.overlong_buffer_len() == 0) return e;
  const double penalty = OverlongPenalty(e.action_tokens(), config.rollout().generate_max_len(),
                                         algorithm.overlong_buffer_len(), algorithm.overlong_penalty_factor());
  e.reward_parts["overlong_penalty"] = static_cast<float>(penalty);
  e.reward = AddRewards(std::array{e.reward, penalty});
  if (!e.token_rewards.empty()) e.token_rewards.back() += static_cast<float>(penalty);
  return e;
}

}  // namespace

// The answers to one prompt.
struct BatchSampler::Group {
  std::vector<Experience> answers;
  int64_t failed = 0;  // that could not be scored
  std::string why;     // of one of them
};

BatchSampler::BatchSampler(const RunConfig& config, Prompts& prompts, const Tokenizer& tokenizer, AnswerSource& answers,
                           ScorerClient& scorer, int64_t drawn, Progress progress)
    : config_(config),
      prompts_(prompts),
      tokenizer_(tokenizer),
      answers_(answers),
      scorer_(scorer),
      drawn_(drawn),
      progress_(std::move(progress)) {}

absl::StatusOr<std::vector<BatchSampler::Group>> BatchSampler::GenerateAndScore(int64_t step, int64_t draw,
                                                                                uint64_t policy_version) {
  const RolloutConfig& rollout = config_.rollout();
  const int64_t samples = rollout.n_samples_per_prompt();
  QUARTET_ASSIGN_OR_RETURN(const std::vector<std::shared_ptr<const PromptRecord>> records,
                           prompts_.Take(drawn_, rollout.over_sampling_batch_size()));
  drawn_ += rollout.over_sampling_batch_size();
  std::vector<const PromptRecord*> prompts;
  for (const auto& record : records) prompts.push_back(record.get());

  const int64_t wanted = rollout.rollout_batch_size() * samples;
  progress_.begin(draw == 0 ? "generate" : absl::StrCat("generate, draw ", draw + 1), wanted);
  std::unique_ptr<ScoreCall> scoring;
  const Stopwatch generation;
  const auto place_of = [samples](const PromptAnswer& answer) {
    return answer.prompt * static_cast<uint64_t>(samples) + answer.sample;
  };
  // Without sources no answer is worth anything to the scorer, and it is not asked. Answers are scored while others are
  // generated, but where not all of them may come: how many do is announced.
  const bool has_sources = !config_.reward().source().empty();
  const bool at_once = answers_.comes_in_a_call() && !answers_.may_drop();
  std::vector<ScoreItem> waiting_items;
  std::vector<uint64_t> scored;  // places, as they were sent
  int64_t told = 0;
  const auto score = [&](const PromptAnswer& answer) {
    progress_.done(++told);
    if (!answer.error.empty()) return absl::OkStatus();
    scored.push_back(place_of(answer));
    if (!has_sources) return absl::OkStatus();
    ScoreItem item =
        MakeScoreItem(scored.back(), {answer.sequences.back(), answer.response, answer.truncated, answer.conversation},
                      *prompts[answer.prompt], config_.reward(), tokenizer_);
    if (at_once) {
      if (scoring == nullptr) scoring = scorer_.BeginScore(wanted);
      scoring->Add(item);
    } else {
      waiting_items.push_back(std::move(item));
    }
    return absl::OkStatus();
  };
  absl::StatusOr<std::vector<PromptAnswer>> drawn = answers_.Draw(
      {.step = step}, HeaderOf(config_, step, draw, policy_version), prompts, rollout.rollout_batch_size(), score);
  // Of one that has failed, too: they may say why.
  absl::Status warned;
  for (const std::string& warning : answers_.TakeWarnings()) {
    warned.Update(progress_.warn(absl::StrCat("step ", step + 1, ": ", warning)));
  }
  QUARTET_ASSIGN_OR_RETURN(std::vector<PromptAnswer> answers, std::move(drawn));
  QUARTET_RETURN_IF_ERROR(warned);
  generate_seconds_ += generation.Seconds();
  const Stopwatch waiting;
  if (has_sources) progress_.begin("waiting for rewards", 0);
  if (!waiting_items.empty()) {
    scoring = scorer_.BeginScore(std::ssize(waiting_items));
    for (const ScoreItem& item : waiting_items) scoring->Add(item);
  }
  const absl::StatusOr<std::vector<ScoreReply>> finished =
      scoring != nullptr ? scoring->Finish() : std::vector<ScoreReply>(scored.size());
  if (!finished.ok()) {
    return NameRow(finished.status(), [&](uint64_t place) -> const PromptRecord& {
      return *records.at(place / static_cast<uint64_t>(samples));
    });
  }
  score_seconds_ += waiting.Seconds();
  std::vector<const ScoreReply*> replies(records.size() * samples);  // by place
  for (size_t i = 0; i < scored.size(); ++i) replies[scored[i]] = &(*finished)[i];

  std::vector<Group> groups(answers.size() / samples);
  for (size_t i = 0; i < answers.size(); ++i) {
    Group& group = groups[i / samples];
    const std::string& error = answers[i].error.empty() ? replies[place_of(answers[i])]->error() : answers[i].error;
    if (!error.empty()) {
      ++group.failed;
      group.why = error;
      continue;
    }
    QUARTET_ASSIGN_OR_RETURN(
        group.answers.emplace_back(),
        ExperienceOf(config_, records[answers[i].prompt], *replies[place_of(answers[i])], std::move(answers[i])));
  }
  return groups;
}

absl::StatusOr<std::vector<Experience>> BatchSampler::Draw(int64_t step, uint64_t policy_version, Metrics* metrics) {
  const DynamicSamplingConfig& dynamic = config_.algorithm().dynamic_sampling();
  QUARTET_ASSIGN_OR_RETURN(const GroupFilter filter, ParseGroupFilter(dynamic.filter()));
  const auto wanted = static_cast<size_t>(config_.rollout().rollout_batch_size());
  generate_seconds_ = score_seconds_ = 0;
  std::vector<Group> kept;
  int64_t draws = 0, groups_seen = 0, without_signal = 0, surplus = 0, failed = 0;
  std::string why;                                                        // of one that failed
  double least = std::numeric_limits<double>::infinity(), most = -least;  // of all scores
  do {
    if (dynamic.max_num_gen_batches() > 0 && draws == dynamic.max_num_gen_batches()) {
      const std::string failures =
          failed == 0 ? "The"
                      : absl::StrCat(failed, " answers could not be scored (", why,
                                     "): what is left of a group may lack a signal for that alone. Else the");
      return absl::FailedPreconditionError(absl::StrCat(
          "step ", step + 1, ": of ", groups_seen, " groups of answers only ", kept.size(), " have a signal (",
          "algorithm.dynamic_sampling.filter \"", dynamic.filter(), "\"), and ", wanted,
          " are needed; scores were from ", least, " to ", most,
          filter == GroupFilter::kMeanInside
              ? absl::StrCat(", range_low is ", dynamic.range_low(), " and range_high ", dynamic.range_high())
              : "",
          ". ", failures,
          " prompts are "
          "too easy or too hard for this policy: choose others, raise rollout.n_samples_per_prompt, or "
          "algorithm.dynamic_sampling.max_num_gen_batches (",
          dynamic.max_num_gen_batches(), ")"));
    }
    QUARTET_ASSIGN_OR_RETURN(std::vector<Group> groups, GenerateAndScore(step, draws++, policy_version));
    int64_t scored_here = 0, failed_here = 0;
    for (Group& group : groups) {
      ++groups_seen;
      scored_here += static_cast<int64_t>(group.answers.size());
      failed_here += group.failed;
      if (group.failed > 0) why = group.why;
      if (group.answers.empty()) continue;
      std::vector<double> scores;
      for (const Experience& e : group.answers) {
        scores.push_back(e.score);
        least = std::min(least, scores.back());
        most = std::max(most, scores.back());
      }
      if (!KeepsGroup(scores, filter, dynamic.range_low(), dynamic.range_high())) {
        ++without_signal;
      } else if (kept.size() == wanted) {
        ++surplus;
      } else {
        kept.push_back(std::move(group));
      }
    }
    failed += failed_here;
    if (scored_here == 0) {
      return absl::FailedPreconditionError(absl::StrCat("step ", step + 1, ": no answer could be scored: ", why));
    }
    if (failed_here > 0) {
      QUARTET_RETURN_IF_ERROR(progress_.warn(
          absl::StrCat("step ", step + 1, draws > 1 ? absl::StrCat(", draw ", draws) : "", ": ", failed_here, " of ",
                       failed_here + scored_here, " answers could not be scored: ", why)));
    }
  } while (filter != GroupFilter::kNone && kept.size() < wanted);

  answers_.TakeMetrics(metrics);
  metrics->Set("time/generate", generate_seconds_);
  metrics->Set("time/score", score_seconds_);
  if (config_.reward().on_error() == "drop" || answers_.may_drop()) {
    metrics->Set("reward/failed", static_cast<double>(failed));
  }
  if (filter != GroupFilter::kNone) {
    metrics->Set("dynamic_sampling/draws", static_cast<double>(draws));
    metrics->Set("dynamic_sampling/groups", static_cast<double>(groups_seen));
    metrics->Set("dynamic_sampling/groups_without_signal", static_cast<double>(without_signal));
    metrics->Set("dynamic_sampling/groups_surplus", static_cast<double>(surplus));
  }
  std::vector<Experience> batch;
  for (size_t g = 0; g < kept.size(); ++g) {
    for (Experience& e : kept[g].answers) {
      e.group = static_cast<int64_t>(g);
      batch.push_back(std::move(e));
    }
  }
  return batch;
}

}  // namespace quartet
