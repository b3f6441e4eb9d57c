#include "orchestrator/loop/batch_sampler.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/random.h"
#include "core/base/status_macros.h"
#include "core/rl/rewards.h"
#include "orchestrator/data/answers.h"
#include "orchestrator/loop/side_by_side.h"

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

}  // namespace

// The answers to one prompt.
struct BatchSampler::Group {
  std::vector<Experience> answers;
  int64_t failed = 0;  // that could not be scored
  std::string why;     // of one of them
};

BatchSampler::BatchSampler(const RunConfig& config, Prompts& prompts, const Tokenizer& tokenizer, Services& services,
                           int64_t drawn, Progress progress)
    : config_(config),
      prompts_(prompts),
      tokenizer_(tokenizer),
      services_(services),
      drawn_(drawn),
      progress_(std::move(progress)) {}

absl::StatusOr<std::vector<BatchSampler::Group>> BatchSampler::GenerateAndScore(int64_t step, int64_t draw,
                                                                                uint64_t policy_version) {
  const RolloutConfig& rollout = config_.rollout();
  const AlgorithmConfig& algorithm = config_.algorithm();
  const int64_t samples = rollout.n_samples_per_prompt();
  QUARTET_ASSIGN_OR_RETURN(const std::vector<std::shared_ptr<const PromptRecord>> records,
                           prompts_.Take(drawn_, rollout.over_sampling_batch_size()));
  drawn_ += rollout.over_sampling_batch_size();
  std::vector<Prompt> prompts(records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    const std::vector<int32_t>& ids = records[i]->ids;
    prompts[i].set_index(i);
    prompts[i].mutable_ids()->Assign(ids.begin(), ids.end());
  }

  const int64_t answers = rollout.rollout_batch_size() * samples;
  progress_.begin(draw == 0 ? "generate" : absl::StrCat("generate, draw ", draw + 1), answers);
  std::unique_ptr<ScoreCall> scoring;
  const Stopwatch generation;
  // Of each answer, by its place among all.
  struct Answered {
    std::string response;
    const ScoreReply* reply = nullptr;
  };
  std::vector<Answered> answered(records.size() * samples);
  const auto place_of = [samples](const GeneratedSequence& sequence) {
    return sequence.prompt_index() * static_cast<uint64_t>(samples) + sequence.sample();
  };
  // Without sources no answer is worth anything, and nobody is asked.
  const bool has_sources = !config_.reward().source().empty();
  std::vector<uint64_t> scored;  // places, as they were sent
  const auto score = [&](const GeneratedSequence& sequence) {
    if (scoring == nullptr && has_sources) scoring = services_.scorer->BeginScore(answers);
    scored.push_back(place_of(sequence));
    ScoreItem item =
        MakeScoreItem(scored.back(), sequence, *records[sequence.prompt_index()], config_.reward(), tokenizer_);
    if (scoring != nullptr) scoring->Add(item);
    answered[scored.back()].response = std::move(*item.mutable_response());
    progress_.done(static_cast<int64_t>(scored.size()));
    return absl::OkStatus();
  };
  QUARTET_ASSIGN_OR_RETURN(std::vector<GeneratedSequence> generated,
                           services_.rollout->GenerateFirst(HeaderOf(config_, step, draw, policy_version), prompts,
                                                            rollout.rollout_batch_size(), score));
  generate_seconds_ += generation.Seconds();
  const Stopwatch waiting;
  if (scoring != nullptr) progress_.begin("waiting for rewards", 0);
  const absl::StatusOr<std::vector<ScoreReply>> finished =
      scoring != nullptr ? scoring->Finish() : std::vector<ScoreReply>(scored.size());
  if (!finished.ok()) {
    return NameRow(finished.status(), [&](uint64_t place) -> const PromptRecord& {
      return *records.at(place / static_cast<uint64_t>(samples));
    });
  }
  const std::vector<ScoreReply>& scores = *finished;
  score_seconds_ += waiting.Seconds();
  for (size_t i = 0; i < scores.size(); ++i) answered[scored[i]].reply = &scores[i];

  std::vector<Group> groups(generated.size() / samples);
  for (size_t i = 0; i < generated.size(); ++i) {
    Group& group = groups[i / samples];
    GeneratedSequence& sequence = generated[i];
    Answered& of = answered[place_of(sequence)];
    const ScoreReply& reply = *of.reply;
    if (!reply.error().empty()) {
      ++group.failed;
      group.why = reply.error();
      continue;
    }
    Experience& e = group.answers.emplace_back();
    e.prompt = records[sequence.prompt_index()];
    e.tokens = std::move(*sequence.mutable_tokens());
    e.response = std::move(of.response);
    e.truncated = sequence.finish_reason() == GeneratedSequence::LENGTH;
    e.excluded = algorithm.overlong_filtering() && e.truncated;
    e.rollout_log_probs.assign(sequence.log_probs().begin(), sequence.log_probs().end());
    e.sampled_log_probs.assign(sequence.sampled_log_probs().begin(), sequence.sampled_log_probs().end());
    e.reward = reply.reward();
    e.token_rewards.assign(reply.token_rewards().begin(), reply.token_rewards().end());
    if (!e.token_rewards.empty() && std::ssize(e.token_rewards) != e.action_tokens()) {
      return absl::InternalError(absl::StrCat("the scorer gave rewards of ", e.token_rewards.size(),
                                              " tokens to an answer of ", e.action_tokens()));
    }
    e.score = reply.score();
    e.reward_parts.insert(reply.parts().begin(), reply.parts().end());
    e.extra_logs.insert(reply.extra_logs().begin(), reply.extra_logs().end());
    if (algorithm.overlong_buffer_len() == 0) continue;
    const double penalty = OverlongPenalty(e.action_tokens(), rollout.generate_max_len(),
                                           algorithm.overlong_buffer_len(), algorithm.overlong_penalty_factor());
    e.reward_parts["overlong_penalty"] = static_cast<float>(penalty);
    e.reward = AddRewards(std::array{e.reward, penalty});
    if (!e.token_rewards.empty()) e.token_rewards.back() += static_cast<float>(penalty);
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

  metrics->Set("time/generate", generate_seconds_);
  metrics->Set("time/score", score_seconds_);
  if (config_.reward().on_error() == "drop") metrics->Set("reward/failed", static_cast<double>(failed));
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
