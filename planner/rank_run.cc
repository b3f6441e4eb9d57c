#include "planner/rank_run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "core/base/division.h"
#include "core/base/status_macros.h"
#include "core/config/batches/call_sizes.h"
#include "core/config/batches/updates.h"
#include "core/config/eval_sets.h"
#include "core/config/run_config.h"
#include "core/hardware/cores.h"
#include "core/hardware/meta_device.h"
#include "core/model/lora_options.h"
#include "core/rank/rank_info.h"
#include "core/training/batch/sequence_cost.h"
#include "core/training/engine/update_call.h"
#include "critic_trainer/critic_engine.h"
#include "orchestrator/loop/experience/policy_loss.h"
#include "planner/largest_batches.h"
#include "policy_trainer/policy_engine.h"
#include "proto/critic_trainer.pb.h"
#include "proto/policy_trainer.pb.h"
#include "proto/rollout.pb.h"
#include "proto/scorer.pb.h"
#include "rollout/engine/engine.h"
#include "scorer/scorer_engine.h"

namespace quartet {
namespace {

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

// `asleep` is as GetInfo tells it after Sleep.
void AddAsleep(const RankInfo& asleep, RankUse* use) {
  for (int tier = 0; tier < kNumMemoryTiers; ++tier) {
    for (const MemoryTotal& total : asleep.memory_totals()) {
      if (total.tier() == MemoryTierName(static_cast<MemoryTier>(tier)))
        use->tiers[tier].asleep = total.current_bytes();
    }
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

absl::StatusOr<RankUse> UseOfTrainer(TrainerEngine& engine, const Volumes& sent) {
  RankUse use = UseOf(engine.Info(), sent);
  QUARTET_RETURN_IF_ERROR(engine.Sleep());
  AddAsleep(engine.Info(), &use);
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
  return UseOfTrainer(*engine, sent);
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
  return UseOfTrainer(*engine, sent);
}

absl::StatusOr<RankUse> RunScorer(const RunConfig& config, const RankContext& context) {
  const std::vector<ScoringModel> models = ScoringModels(config);
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<ScorerEngine> engine, ScorerEngine::Load(models, context));
  Volumes sent;
  for (const ScoringModel& model : models) {
    QUARTET_ASSIGN_OR_RETURN(const Sharing sharing, SharingOf(config, context, model.folder, model.dtype));
    const Share share(config, context, sharing, {.sequences = model.sequences, .tokens = model.tokens},
                      SequencesPerBatch(config));
    ForwardCall call;
    call.add_micro_batch_sizes(static_cast<uint32_t>(share.lengths.size()));
    call.set_temperature(config.rollout().temperature());
    std::vector<TokenValues> replies;
    const Volumes before = VolumesOf(engine->Info());
    if (model.is_reference()) {
      QUARTET_RETURN_IF_ERROR(engine->ReferenceLogProbs(call, ForwardBatch(share), &replies));
    } else {
      call.set_model(model.source);
      QUARTET_RETURN_IF_ERROR(engine->Rewards(call, ForwardBatch(share), &replies));
    }
    AddTraffic(before, VolumesOf(engine->Info()), share.micro_batches, &sent);
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
  const auto answer = static_cast<double>(LongestSequence(config) - config.data().prompt_max_len());
  return static_cast<int64_t>((prompts * config.data().prompt_max_len() + sequences * (answer - 1)) * token +
                              sequences * answer * drawn);
}

// Sequences that a rollout has at once at most: a step's, or those of the largest held-out set, which is taken
// to have as many rows as may be used of it; or a turn of each of an agent's episodes.
int64_t SequencesAtOnce(const RunConfig& config) {
  if (HasAgent(config)) return config.agent().processes();
  int64_t sequences =
      std::max<int64_t>(SequencesPerBatch(config),
                        int64_t{config.rollout().over_sampling_batch_size()} * config.rollout().n_samples_per_prompt());
  for (const EvalSet& set : EvalSets(config)) {
    const int64_t prompts = set.max_samples() > 0 ? set.max_samples() : std::numeric_limits<int32_t>::max();
    sequences = std::max(sequences, prompts * set.n_samples_per_prompt());
  }
  return sequences;
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
  const int64_t sequences = CeilDivide(SequencesAtOnce(config), engines);
  const int64_t running = std::min<int64_t>({sequences, options.max_num_seqs(), options.max_num_batched_tokens()});
  const int64_t length =
      std::min<int64_t>(LongestPrompt(config), CeilDivide(options.max_num_batched_tokens(), running));
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
  engine->Sleep(/*release_weights=*/!config.actor().has_lora());
  AddAsleep(DescribeRank(context, ledger), &use);
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

bool HasEngine(const RunConfig& config, const std::string& service) {
  return service != "scorer" || !ScoringModels(config).empty();
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
