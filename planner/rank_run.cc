#include "planner/rank_run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/base/status_macros.h"
#include "core/config/batches/call_sizes.h"
#include "core/config/batches/updates.h"
#include "core/config/run_config.h"
#include "core/hardware/cores.h"
#include "core/hardware/meta_device.h"
#include "core/kernels/cpu/sequence_rows.h"
#include "core/model/lora_options.h"
#include "core/model/model_config.h"
#include "core/rank/rank_info.h"
#include "core/rl/options/token_arrays.h"
#include "core/training/batch/sequence_cost.h"
#include "core/training/engine/update_call.h"
#include "critic_trainer/critic_engine.h"
#include "orchestrator/loop/policy_loss.h"
#include "policy_trainer/policy_engine.h"
#include "proto/critic_trainer.pb.h"
#include "proto/policy_trainer.pb.h"
#include "proto/rollout.pb.h"
#include "proto/scorer.pb.h"
#include "rollout/engine/engine.h"
#include "scorer/scorer_engine.h"

namespace quartet {
namespace {

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

bool HasPairs(Program program) { return program == Program::kDpo || program == Program::kRewardModel; }

// A run that learns from rows alone as a PPO step of one optimizer step: each of the batch's sequences an answer to a
// prompt of its own, as long as it may be, all of it trained on.
RunConfig AsPpoStep(RunConfig config, Program program) {
  if (program == Program::kPpo) return config;
  const TrainerConfig& trainer = program == Program::kRewardModel ? config.critic() : config.actor();
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

// What one rank's micro-batch may hold: tokens where that is above 0, else sequences.
struct Limit {
  int64_t sequences;
  int64_t tokens;
};
Limit TrainLimit(const TrainerConfig& config) {
  return {config.micro_train_batch_size(), config.max_tokens_per_micro_batch()};
}
Limit ForwardLimit(const TrainerConfig& config) {
  return {config.micro_rollout_batch_size(), config.max_tokens_per_micro_batch()};
}

// How sequences that begin alike are computed by the model in folder `pretrain`.
absl::StatusOr<Sharing> SharingOf(const RunConfig& config, const RankContext& context, const std::string& pretrain,
                                  const std::string& dtype) {
  QUARTET_ASSIGN_OR_RETURN(const ModelConfig model, ReadModelConfig(pretrain));
  return SharingOn(PlacementOf(config, context.service).device() == "cpu", dtype == "bf16", model.head_dim);
}

// A rank's share of `sequences` sequences: micro-batches as full as they can be, and how many of them there are.
struct Share {
  // `together` sequences, 1 or 2, are not divided.
  Share(const RunConfig& config, const RankContext& context, Sharing sharing, const Limit& limit, int64_t sequences,
        int64_t together = 1)
      : prompt_(config.data().prompt_max_len()),
        answer_(config.rollout().generate_max_len()),
        samples_(sharing != Sharing::kNone ? config.rollout().n_samples_per_prompt() : 1),
        copies_keys_(sharing == Sharing::kKeyCopies) {
    const int ranks = context.world_size;
    const int64_t longest = LongestSequence(config), most = CeilDivide(sequences / together, ranks) * together;
    const int64_t fit = limit.tokens > 0 ? limit.tokens / longest : limit.sequences;
    const int64_t whole = std::max<int64_t>(1, fit / together) * together;
    lengths.assign(std::min(whole, most), longest);
    const int64_t rest = (limit.tokens - longest * whole) / together;  // for each of some more, which are shorter
    if (rest >= 2 && whole < most) lengths.insert(lengths.end(), together, rest);
    micro_batches = CeilDivide(most, std::max(whole, SharingFit(limit)));
    shared_fit_ = std::min(SharingFit(limit), samples_);
  }

  // Of a sequence of `length` tokens. A micro-batch of tokens is as full where samples share their prompt, and has more
  // actions then.
  int64_t Actions(int64_t length) const {
    const int64_t answers = std::max<int64_t>(1, shared_fit_) * answer_;
    const int64_t share = shared_fit_ <= 1 ? answer_ : CeilDivide(length * answers, prompt_ + answers);
    return std::min(std::max(share, answer_), length - 1);
  }

  std::vector<int64_t> lengths;  // of the sequences of one micro-batch
  int64_t micro_batches;

 private:
  // Sequences that fit in a micro-batch of tokens where samples share their prompt.
  int64_t SharingFit(const Limit& limit) const {
    if (limit.tokens == 0) return 0;
    const int64_t keys = copies_keys_ ? CeilDivide(prompt_ + answer_, kMostKeysOfARow) : 0;  // of a sequence
    const int64_t group = std::max(prompt_ + samples_ * answer_, samples_ * keys);
    const auto answers_in = [this, keys](int64_t tokens) {
      const int64_t answers = std::max<int64_t>(0, (tokens - prompt_) / answer_);
      return keys == 0 ? answers : std::min(answers, tokens / keys);
    };
    return limit.tokens / group * samples_ + answers_in(limit.tokens % group);
  }

  int64_t prompt_, answer_, samples_;
  bool copies_keys_;
  int64_t shared_fit_ = 0;  // samples of one prompt
};

// One micro-batch.
std::vector<TokenSequence> ForwardBatch(const Share& share) {
  std::vector<TokenSequence> sequences;
  for (const int64_t length : share.lengths) {
    sequences.push_back(SequenceOf(static_cast<int32_t>(sequences.size()), length, share.Actions(length)));
  }
  return sequences;
}

// Several, end to end.
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

// What has been sent so far, by group.
using Volumes = std::map<std::pair<int, int>, int64_t>;  // ranks, stride

Volumes VolumesOf(const RankInfo& info) {
  Volumes volumes;
  for (const GroupVolume& group : info.groups()) volumes[{group.ranks(), group.stride()}] += group.sent_bytes();
  return volumes;
}

// Adds `times` what was sent between two moments.
void AddTraffic(const Volumes& from, const Volumes& to, int64_t times, Volumes* sum) {
  for (const auto& [group, bytes] : to) {
    const auto before = from.find(group);
    (*sum)[group] += times * (bytes - (before == from.end() ? 0 : before->second));
  }
}

RankUse UseOf(const RankInfo& info, const Volumes& sent) {
  RankUse use;
  use.tiers = TiersOf(info);
  for (const auto& [group, bytes] : sent) {
    if (bytes > 0) use.traffic.push_back({.ranks = group.first, .stride = group.second, .sent_bytes = bytes});
  }
  return use;
}

// The optimizer steps of a trainer in a PPO step.
struct Training {
  int64_t batch_size = 0;  // sequences of one
  int64_t epochs = 0;
};

// What a trainer does in a PPO step: forwards over all sequences, then optimizer steps as `step` says. One micro-batch
// of forwards is run, and optimizer steps of one and of two: the second of two sends what each further one does.
absl::Status Train(const RunConfig& config, Program program, const TrainerConfig& trainer, const Training& steps,
                   const RankContext& context, TrainerEngine& engine, const UpdateCall& step, Volumes* sent) {
  const bool pairs = HasPairs(program);
  QUARTET_ASSIGN_OR_RETURN(const Sharing sharing, SharingOf(config, context, trainer.pretrain(), trainer.dtype()));
  const Share forwards(config, context, sharing, ForwardLimit(trainer), SequencesPerBatch(config));
  const Share training(config, context, sharing, TrainLimit(trainer), steps.batch_size, pairs ? 2 : 1);
  const auto forward = [&]() -> absl::Status {
    const std::vector<TokenSequence> tokens = ForwardBatch(forwards);
    ForwardCall call;
    call.add_micro_batch_sizes(static_cast<uint32_t>(tokens.size()));
    call.set_temperature(config.rollout().temperature());
    std::vector<TokenValues> replies;
    return engine.Forward(call, tokens, &replies);
  };
  const auto update = [&](int micro_batches) {
    UpdateCall call = step;
    for (int m = 0; m < micro_batches; ++m) call.add_micro_batch_sizes(static_cast<uint32_t>(training.lengths.size()));
    UpdateSums sums;
    return engine.Update(call, TrainBatch(training, micro_batches, pairs), &sums);
  };
  const Volumes before = VolumesOf(engine.Info());
  if (program != Program::kSft) QUARTET_RETURN_IF_ERROR(forward());  // which makes none
  const Volumes after_forward = VolumesOf(engine.Info());
  QUARTET_RETURN_IF_ERROR(update(1));
  const Volumes after_one = VolumesOf(engine.Info());
  QUARTET_RETURN_IF_ERROR(update(training.micro_batches > 1 ? 2 : 1));
  const Volumes after_two = VolumesOf(engine.Info());
  const bool is_asked_twice = program == Program::kPpo && context.service == "policy_trainer" &&
                              UsesReference(config) && ReferenceIsBase(config);  // as the reference, too
  AddTraffic(before, after_forward, (is_asked_twice ? 2 : 1) * forwards.micro_batches, sent);
  const int64_t updates = CeilDivide(SequencesPerBatch(config), steps.batch_size) * steps.epochs;
  const int64_t further = updates * (training.micro_batches - 1);
  AddTraffic(after_forward, after_one, updates - further, sent);
  AddTraffic(after_one, after_two, further, sent);
  return absl::OkStatus();
}

PolicyLossConfig LossOf(const RunConfig& config, Program program) {
  if (program == Program::kPpo) return PolicyLossOf(config.algorithm(), config.algorithm().kl().init_kl_coef());
  PolicyLossConfig loss;
  loss.set_kind(program == Program::kSft              ? PolicyLossConfig::KIND_SFT
                : config.preference().loss() == "ipo" ? PolicyLossConfig::KIND_IPO
                                                      : PolicyLossConfig::KIND_DPO);
  if (program == Program::kDpo) {
    loss.set_beta(config.preference().beta());
    loss.set_label_smoothing(config.preference().label_smoothing());
  }
  return loss;
}

absl::StatusOr<RankUse> RunPolicy(const RunConfig& config, Program program, const RankContext& context) {
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<PolicyEngine> engine,
                           PolicyEngine::Load(config.actor(), config.seed(), context));
  PolicyUpdateHeader step;
  step.set_temperature(config.rollout().temperature());
  step.set_learning_rate(config.actor().learning_rate());
  step.set_entropy_after_temperature(config.algorithm().entropy_after_temperature());
  *step.mutable_loss() = LossOf(config, program);
  // The service keeps what it has published until the next step's publication.
  std::shared_ptr<const PublishedWeights> published;
  if (program == Program::kPpo) {
    QUARTET_ASSIGN_OR_RETURN(published, engine->Publish(1));
  }
  Volumes sent;
  QUARTET_RETURN_IF_ERROR(Train(config, program, config.actor(),
                                {TrainBatchSize(config), config.algorithm().max_epochs()}, context, *engine,
                                MakeUpdateCall(step), &sent));
  return UseOf(engine->Info(), sent);
}

absl::StatusOr<RankUse> RunCritic(const RunConfig& config, Program program, const RankContext& context) {
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<CriticEngine> engine,
                           CriticEngine::Load(config.critic(), config.seed(), context));
  CriticUpdateHeader step;
  step.set_learning_rate(config.critic().learning_rate());
  step.set_value_clip(config.algorithm().value_clip());
  if (program == Program::kRewardModel) step.set_loss(CriticUpdateHeader::LOSS_PAIRWISE);
  Volumes sent;
  QUARTET_RETURN_IF_ERROR(Train(config, program, config.critic(),
                                {CriticTrainBatchSize(config), config.algorithm().critic_epochs()}, context, *engine,
                                MakeUpdateCall(step), &sent));
  return UseOf(engine->Info(), sent);
}

absl::StatusOr<RankUse> RunScorer(const RunConfig& config, const RankContext& context) {
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<ScorerEngine> engine,
                           ScorerEngine::Load(ReferenceOf(config), config.reward(), context));
  Volumes sent;
  const auto run = [&](const std::string& folder, const std::string& dtype, const Limit& limit, int model,
                       const auto& forward) -> absl::Status {
    QUARTET_ASSIGN_OR_RETURN(const Sharing sharing, SharingOf(config, context, folder, dtype));
    const Share share(config, context, sharing, limit, SequencesPerBatch(config));
    ForwardCall call;
    call.add_micro_batch_sizes(static_cast<uint32_t>(share.lengths.size()));
    call.set_temperature(config.rollout().temperature());
    call.set_model(model);
    std::vector<TokenValues> replies;
    const Volumes before = VolumesOf(engine->Info());
    QUARTET_RETURN_IF_ERROR(forward(call, ForwardBatch(share), &replies));
    AddTraffic(before, VolumesOf(engine->Info()), share.micro_batches, &sent);
    return absl::OkStatus();
  };
  if (ReferenceOf(config).has_value()) {
    const Limit limit = {config.actor().micro_rollout_batch_size(), config.reference().max_tokens_per_micro_batch()};
    QUARTET_RETURN_IF_ERROR(run(config.reference().pretrain(), config.reference().dtype(), limit, 0,
                                [&](const auto& call, const auto& tokens, auto* replies) {
                                  return engine->ReferenceLogProbs(call, tokens, replies);
                                }));
  }
  for (int i = 0; i < config.reward().source_size(); ++i) {
    const RewardSource& source = config.reward().source(i);
    if (source.model().empty()) continue;
    const Limit limit = {config.reward().micro_rollout_batch_size(), config.reward().max_tokens_per_micro_batch()};
    QUARTET_RETURN_IF_ERROR(run(
        source.model(), source.dtype(), limit, i,
        [&](const auto& call, const auto& tokens, auto* replies) { return engine->Rewards(call, tokens, replies); }));
  }
  return UseOf(engine->Info(), sent);
}

// What a tensor-parallel rank of one of `engines` engines sends in a PPO step, given what it sent to compute `running`
// prompts of `length` tokens and draw a token for each, and to decode one more token of each.
int64_t SentInStep(const RunConfig& config, double engines, int64_t running, int64_t length, int64_t prefill,
                   int64_t decode) {
  const auto all = static_cast<double>(running);
  const bool apart = length > 1 && decode > 0;
  const double token = apart ? static_cast<double>(prefill - decode) / (all * static_cast<double>(length - 1))
                             : static_cast<double>(prefill) / (all * static_cast<double>(length));
  const double drawn = apart ? static_cast<double>(decode) / all - token : 0;
  // Samples share their prompt, whose length is the greatest; answers are as long as they may be, and the last token of
  // each is not computed. Engines have equal parts of them.
  const double prompts = config.rollout().rollout_batch_size() / engines;
  const double sequences = static_cast<double>(SequencesPerBatch(config)) / engines;
  const double answer = config.rollout().generate_max_len();
  return static_cast<int64_t>((prompts * config.data().prompt_max_len() + sequences * (answer - 1)) * token +
                              sequences * answer * drawn);
}

// Loads, generates one token for as many sequences as run at once, in forwards that are as large as they can be, takes
// new weights, and generates again.
absl::StatusOr<RankUse> RunRollout(const RunConfig& config, const RankContext& context, const GpuRoom& room) {
  const RolloutConfig& options = config.rollout();
  Ledger ledger;
  SetBudgets(context, &ledger);
  QUARTET_ASSIGN_OR_RETURN(
      const std::unique_ptr<RolloutEngine> engine,
      RolloutEngine::Load(options, context, &ledger, /*tokenizer=*/nullptr,
                          {.bytes = room.memory_bytes, .other_bytes = room.outside_tensors}, LoraOf(config.actor())));
  const int64_t engines = context.world_size / options.tensor_parallel_size();
  const int64_t sequences = CeilDivide(SequencesPerBatch(config), engines);
  const int64_t running = std::min<int64_t>({sequences, options.max_num_seqs(), options.max_num_batched_tokens()});
  const int64_t length =
      std::min<int64_t>(config.data().prompt_max_len(), CeilDivide(options.max_num_batched_tokens(), running));
  // Returns what that sent.
  const auto generate = [&](int32_t tokens) -> absl::StatusOr<int64_t> {
    auto sampling = std::make_shared<SamplingParams>();
    sampling->set_temperature(config.rollout().temperature());
    sampling->set_top_p(1);
    sampling->set_top_k(-1);
    sampling->set_n_samples(1);
    sampling->set_ignore_eos(true);
    sampling->set_max_new_tokens(tokens);
    const int64_t sent = engine->stats().sent_bytes();
    for (int64_t i = 0; i < running; ++i) {
      GenerationTask task;
      task.call = 1;
      task.sampling = sampling;
      task.prompt_index = i;
      task.ids.assign(length, 0);
      task.ids[0] = static_cast<int32_t>(i % engine->vocab_size());  // prompts that have nothing in common
      QUARTET_RETURN_IF_ERROR(engine->Check(*sampling, task));
      engine->Add(task);
    }
    while (!engine->idle()) QUARTET_RETURN_IF_ERROR(engine->Step().status());
    return engine->stats().sent_bytes() - sent;
  };
  engine->ReserveStaging();
  QUARTET_RETURN_IF_ERROR(generate(1).status());
  engine->Commit(engine->NewStaging(), 1);
  QUARTET_ASSIGN_OR_RETURN(const int64_t prefill, generate(1));
  Volumes sent;
  if (options.tensor_parallel_size() > 1) {
    int64_t decode = 0;
    if (config.rollout().generate_max_len() > 1) {
      engine->Commit(engine->NewStaging(), 2);  // so that the prompts are computed again
      QUARTET_ASSIGN_OR_RETURN(decode, generate(2));
      decode -= prefill;
    }
    sent[{options.tensor_parallel_size(), 1}] =
        SentInStep(config, static_cast<double>(engines), running, length, prefill, decode);
  }
  RankUse use = UseOf(DescribeRank(context, ledger), sent);
  use.kv_cache_bytes = ledger.current(MemoryCategory::kKvCache);
  use.kv_cache_blocks = engine->stats().blocks();
  return use;
}

}  // namespace

std::array<TierUse, kNumMemoryTiers> TiersOf(const RankInfo& info) {
  std::array<TierUse, kNumMemoryTiers> tiers;
  for (int tier = 0; tier < kNumMemoryTiers; ++tier) {
    const std::string name(MemoryTierName(static_cast<MemoryTier>(tier)));
    for (const MemoryUse& use : info.memory()) {
      if (use.tier() != name) continue;
      for (int i = 0; i < kNumMemoryCategories; ++i) {
        if (use.category() == MemoryCategoryName(static_cast<MemoryCategory>(i))) {
          tiers[tier].categories[i] = use.peak_bytes();
        }
      }
    }
    for (const MemoryTotal& total : info.memory_totals()) {
      if (total.tier() == name) tiers[tier].total = total.peak_bytes();
    }
  }
  return tiers;
}

int64_t LeaderCallBytes(const RunConfig& run, const std::string& service, Program program) {
  const RunConfig config = AsPpoStep(run, program);
  const int64_t ranks = PlacementOf(config, service).ranks();
  const int64_t answer = config.rollout().generate_max_len(), longest = LongestSequence(config);
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
    Prompt prompt;
    for (int64_t t = 0; t < config.data().prompt_max_len(); ++t) prompt.add_ids(0);
    const int64_t prompts = CeilDivide(generated, config.rollout().n_samples_per_prompt());
    constexpr int64_t kBytesOfAnswer = 8;  // id and log-probability of a token
    return call(prompt, prompts, /*to_ranks=*/true) + generated * answer * kBytesOfAnswer;
  }
  if (service == "scorer") {
    const int64_t forward = call(tokens, generated, /*to_ranks=*/true) / 2;  // the items are those of the Score call
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
    bytes += call(item, generated, /*to_ranks=*/false);
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
                                                   : call(tokens, SequencesPerBatch(config), true) +
                                                         call(values, SequencesPerBatch(config), false);
  return std::max(forward, call(training, critic ? CriticTrainBatchSize(config) : TrainBatchSize(config), true));
}

bool HasEngine(const RunConfig& config, const std::string& service) {
  return service != "scorer" || ScorerHasModels(config);
}

absl::StatusOr<RankUse> RunRank(const RunConfig& run, const RankContext& context, const GpuRoom& room,
                                Program program) {
  const RunConfig config = AsPpoStep(run, program);
  if (context.service == "policy_trainer") return RunPolicy(config, program, context);
  if (context.service == "critic_trainer") return RunCritic(config, program, context);
  if (context.service == "scorer") return RunScorer(config, context);
  return RunRollout(config, context, room);
}

namespace {

// While it lives LibTorch has so many threads, which need memory of their own.
class LibTorchThreads {
 public:
  explicit LibTorchThreads(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  LibTorchThreads(const LibTorchThreads&) = delete;
  LibTorchThreads& operator=(const LibTorchThreads&) = delete;
  ~LibTorchThreads() { at::set_num_threads(before_); }

 private:
  const int before_;
};

}  // namespace

absl::StatusOr<RankUse> RunRankDry(const RunConfig& config, const std::string& service, int rank, const GpuRoom& room,
                                   Program program) {
  const ServicePlacement& placement = PlacementOf(config, service);
  RankContext context;
  context.service = service;
  context.rank = rank;
  context.world_size = placement.ranks();
  context.device = "meta";
  // Ranks on CPUs share memory on one host and use Gloo between hosts.
  context.collective_backend = placement.collective_backend();
  if (context.collective_backend == "auto" && placement.device() == "cpu" && config.cluster().num_nodes() > 1) {
    context.collective_backend = "gloo";
  }
  const int nodes = std::max(1, config.cluster().num_nodes());
  context.threads = ThreadsOfRank(placement.threads(), static_cast<int>(CeilDivide(placement.ranks(), nodes)));
  const LibTorchThreads threads(context.threads);
  context.device_memory_budget = placement.device_memory_budget();
  context.host_memory_budget = placement.host_memory_budget();
  const MetaStandsFor device(placement.device() == "cuda" ? at::kCUDA : at::kCPU);
  return RunRank(config, context, room, program);
}

}  // namespace quartet
