#include "planner/largest_batches.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <type_traits>

#include "core/base/division.h"
#include "core/base/status_macros.h"
#include "core/config/batches/call_sizes.h"
#include "core/config/batches/updates.h"
#include "core/kernels/cpu/attention/sequence_rows.h"
#include "core/model/model_config.h"
#include "core/rl/options/token_arrays.h"
#include "proto/rollout.pb.h"
#include "proto/scorer.pb.h"

namespace quartet {
namespace {

// Begins as no sequence with another `index` does. The last `actions` tokens are actions.
TokenSequence SequenceOf(int32_t index, int64_t length, int64_t actions) {
  TokenSequence sequence;
  for (int64_t t = 0; t < length; ++t) {
    sequence.add_ids(t == 0 ? index : 0);
    sequence.add_action_mask(t >= length - actions);
  }
  return sequence;
}

// With every array that any loss reads.
TrainingSequence ExperienceOf(int32_t index, int64_t length, int64_t actions) {
  TrainingSequence sequence;
  *sequence.mutable_tokens() = SequenceOf(index, length, actions);
  for (const std::string_view array : kTokenArrays) {
    AddArray(array, &sequence).Resize(static_cast<int>(actions), 0);
  }
  return sequence;
}

}  // namespace

bool HasPairs(Program program) { return program == Program::kDpo || program == Program::kRewardModel; }

RunConfig AsPpoStep(RunConfig config, Program program) {
  if (program == Program::kPpo) return config;
  const TrainerConfig& trainer = TrainerOf(config, LearningSection(program));
  const int batch = (HasPairs(program) ? 2 : 1) * config.train().train_batch_size();
  config.mutable_data()->set_prompt_max_len(1);
  config.mutable_rollout()->set_generate_max_len(trainer.max_len() - 1);
  config.mutable_rollout()->set_rollout_batch_size(batch);
  config.mutable_rollout()->set_over_sampling_batch_size(batch);
  config.mutable_rollout()->set_n_samples_per_prompt(1);
  config.mutable_rollout()->set_temperature(1);
  config.mutable_train()->set_train_batch_size(batch);
  config.mutable_train()->set_critic_train_batch_size(batch);
  config.mutable_algorithm()->set_max_epochs(1);
  config.mutable_algorithm()->set_critic_epochs(1);
  return config;
}

MicroBatchLimit TrainLimit(const TrainerConfig& config) {
  return {config.micro_train_batch_size(), config.max_tokens_per_micro_batch()};
}

MicroBatchLimit ForwardLimit(const TrainerConfig& config) {
  return {config.micro_rollout_batch_size(), config.max_tokens_per_micro_batch()};
}

absl::StatusOr<Sharing> SharingOf(const RunConfig& config, const RankContext& context, const std::string& pretrain,
                                  const std::string& dtype) {
  QUARTET_ASSIGN_OR_RETURN(const ModelConfig model, ReadModelConfig(pretrain));
  return SharingOn(PlacementOf(config, context.service).device() == "cpu", dtype == "bf16", model.head_dim);
}

Share::Share(const RunConfig& config, const RankContext& context, Sharing sharing, const MicroBatchLimit& limit,
             int64_t sequences, int64_t together)
    : prompt_(LongestSequence(config) - MostActions(config)),
      answer_(MostActions(config)),
      samples_(sharing != Sharing::kNone ? config.rollout().n_samples_per_prompt() : 1),
      copies_keys_(sharing == Sharing::kKeyCopies) {
  const int ranks = context.world_size;
  const int64_t longest = LongestSequence(config), most = CeilDivide(sequences / together, ranks) * together;
  const int64_t could = most * MostSequencesOfAnswer(config);
  const int64_t fit = limit.tokens > 0 ? limit.tokens / longest : limit.sequences;
  const int64_t whole = std::max<int64_t>(1, fit / together) * together;
  lengths.assign(std::min(whole, could), longest);
  const int64_t rest = (limit.tokens - longest * whole) / together;  // for each of some more, which are shorter
  if (rest >= 2 && whole < could) lengths.insert(lengths.end(), together, rest);
  micro_batches = CeilDivide(most, std::max(whole, SharingFit(limit)));
  shared_fit_ = std::min(SharingFit(limit), samples_);
}

int64_t Share::Actions(int64_t length) const {
  const int64_t answers = std::max<int64_t>(1, shared_fit_) * answer_;
  const int64_t share = shared_fit_ <= 1 ? answer_ : CeilDivide(length * answers, prompt_ + answers);
  return std::min(std::max(share, answer_), length - 1);
}

int64_t Share::SharingFit(const MicroBatchLimit& limit) const {
  if (limit.tokens == 0) return 0;
  const int64_t keys = copies_keys_ ? CeilDivide(prompt_ + answer_, kMostKeysOfARow) : 0;  // of a sequence
  const int64_t group = std::max(prompt_ + samples_ * answer_, samples_ * keys);
  const auto answers_in = [this, keys](int64_t tokens) {
    const int64_t answers = std::max<int64_t>(0, (tokens - prompt_) / answer_);
    return keys == 0 ? answers : std::min(answers, tokens / keys);
  };
  return limit.tokens / group * samples_ + answers_in(limit.tokens % group);
}

std::vector<TokenSequence> ForwardBatch(const Share& share) {
  std::vector<TokenSequence> sequences;
  for (const int64_t length : share.lengths) {
    sequences.push_back(SequenceOf(static_cast<int32_t>(sequences.size()), length, share.Actions(length)));
  }
  return sequences;
}

std::vector<TrainingSequence> TrainBatch(const Share& share, int micro_batches, bool pairs) {
  std::vector<TrainingSequence> sequences;
  for (int m = 0; m < micro_batches; ++m) {
    for (const int64_t length : share.lengths) {
      sequences.push_back(ExperienceOf(static_cast<int32_t>(sequences.size()), length, share.Actions(length)));
    }
  }
  for (size_t i = 0; pairs && i < sequences.size(); i += 2) sequences[i].mutable_pair()->set_weight(1);
  return sequences;
}

int64_t LeaderCallBytes(const RunConfig& run, const std::string& service, Program program) {
  const RunConfig config = AsPpoStep(run, program);
  const int64_t ranks = PlacementOf(config, service).ranks();
  const int64_t answer = MostActions(config), longest = LongestSequence(config);
  const int64_t each = MostSequencesOfAnswer(config);
  const int64_t generated =
      std::max<int64_t>(SequencesPerBatch(config),
                        int64_t{config.rollout().over_sampling_batch_size()} * config.rollout().n_samples_per_prompt());
  // A call of `count` items like `item`: as they were read, the leader's own copy, the other ranks' as they go out.
  const auto call = [ranks](const auto& item, int64_t count, bool to_ranks) {
    const std::string wire = item.SerializeAsString();
    std::decay_t<decltype(item)> read;
    read.ParseFromString(wire);
    const auto held = static_cast<int64_t>(read.SpaceUsedLong());
    const int64_t copies = (held + (ranks - 1) * static_cast<int64_t>(wire.size())) / ranks;
    return count * (held + (to_ranks ? copies : 0));
  };
  const TokenSequence tokens = SequenceOf(0, longest, answer);
  if (service == "rollout") {
    const bool agent = HasAgent(config);  // each of whose calls has a prompt and an answer
    Prompt prompt;
    for (int64_t t = 0; t < LongestPrompt(config); ++t) prompt.add_ids(0);
    const int64_t answers = agent ? config.agent().processes() : generated;
    const int64_t prompts = agent ? answers : CeilDivide(answers, config.rollout().n_samples_per_prompt());
    constexpr int64_t kBytesOfAnswer = 8;  // id and log-probability of a token
    return call(prompt, prompts, /*to_ranks=*/true) + answers * config.rollout().generate_max_len() * kBytesOfAnswer;
  }
  if (service == "scorer") {
    const int64_t forward =
        call(tokens, each * generated, /*to_ranks=*/true) / 2;  // the items are those of the Score call
    int64_t bytes = ReferenceOf(config).has_value() && program != Program::kRewardModel ? 2 * forward : 0;
    if (config.reward().source().empty()) return bytes;
    ScoreItem item;
    *item.mutable_tokens() = tokens;
    item.set_response(std::string(4 * answer, ' '));
    bool has_texts = false, has_models = false;
    for (const RewardSource& source : config.reward().source()) {
      has_texts = has_texts || !source.remote_url().empty() || !source.command().empty();
      has_models = has_models || !source.model().empty();
    }
    if (has_texts) {
      item.set_prompt(std::string(4 * config.data().prompt_max_len(), ' '));
      item.set_query(std::string(4 * longest, ' '));
    }
    bytes += call(item, each * generated, /*to_ranks=*/false);
    return has_models ? bytes + forward : bytes;
  }
  const bool critic = service == "critic_trainer";
  TrainingSequence training;
  *training.mutable_tokens() = tokens;
  for (const std::string_view array : kTokenArrays) {
    const bool of_values =
        std::find(std::begin(kValueLossArrays), std::end(kValueLossArrays), array) != std::end(kValueLossArrays);
    if (of_values == critic || array == kLossWeights) {
      AddArray(array, &training).Resize(static_cast<int>(answer), 0);
    }
  }
  TokenValues values;
  values.mutable_values()->Resize(static_cast<int>(answer), 0);
  const int64_t forward = program == Program::kSft ? 0
                                                   : call(tokens, each * SequencesPerBatch(config), true) +
                                                         call(values, each * SequencesPerBatch(config), false);
  return std::max(forward,
                  call(training, each * (critic ? CriticTrainBatchSize(config) : TrainBatchSize(config)), true));
}

}  // namespace quartet
