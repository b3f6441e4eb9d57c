#include "planner/plan.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>

#include "absl/strings/str_format.h"
#include "core/comm/process_group.h"
#include "core/config/placement.h"
#include "core/config/run_config.h"
#include "core/memory/ledger.h"
#include "core/rank/rank_context.h"
#include "core/rank/rank_info.h"
#include "core/rank/rank_setup.h"
#include "core/rl/options/token_arrays.h"
#include "core/training/calls/sequence_calls.h"
#include "core/training/engine/rank_calls.pb.h"
#include "core/training/testing/engine_ranks.h"
#include "core/zero/sharded/sharded_model.h"
#include "planner/largest_batches.h"
#include "planner/rank_run.h"
#include "planner/report.h"
#include "planner/search.h"
#include "planner/testing/small_runs.h"
#include "proto/policy_trainer.pb.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Case {
  std::string service;
  std::vector<std::string> overrides;
  Program program = Program::kPpo;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << c.service;
  for (const std::string& text : c.overrides) out << " " << text;
  return out;
}

// Where a run took more or less than planned: a line a category, none where it is within 1 % for parameters, gradients,
// optimizer and gathered groups, and within 5 % for the others and for all of a tier at once.
std::vector<std::string> DifferencesOf(const RankUse& planned, const RankUse& measured) {
  std::vector<std::string> differences;
  const auto compare = [&](int tier, const std::string& name, double tolerance, int64_t plan, int64_t real) {
    if (std::abs(static_cast<double>(plan - real)) <= tolerance * static_cast<double>(real)) return;
    differences.push_back(absl::StrFormat(
        "%s %s: planned %d bytes, measured %d (%+.1f %%)", MemoryTierName(static_cast<MemoryTier>(tier)), name, plan,
        real, real == 0 ? 100.0 : 100.0 * static_cast<double>(plan - real) / static_cast<double>(real)));
  };
  for (int tier = 0; tier < kNumMemoryTiers; ++tier) {
    for (int i = 0; i < kNumMemoryCategories; ++i) {
      const auto category = static_cast<MemoryCategory>(i);
      const bool exact = category == MemoryCategory::kParameters || category == MemoryCategory::kGradients ||
                         category == MemoryCategory::kOptimizer || category == MemoryCategory::kGathered;
      compare(tier, std::string(MemoryCategoryName(category)), exact ? 0.01 : 0.05, planned.tiers[tier].categories[i],
              measured.tiers[tier].categories[i]);
    }
    compare(tier, "asleep", 0.05, planned.tiers[tier].asleep, measured.tiers[tier].asleep);
    compare(tier, "at once", 0.05, planned.tiers[tier].total, measured.tiers[tier].total);
  }
  return differences;
}

class PlanAgainstRun : public ::testing::TestWithParam<Case> {};

TEST_P(PlanAgainstRun, ARankTakesWhatWasPlanned) {
  const RunConfig config = Config(NewModel(), GetParam().overrides, GetParam().program);
  const int ranks = PlacementOf(config, GetParam().service).ranks();
  std::mutex mutex;
  std::vector<RankUse> measured(ranks);
  RunEngineRanks(ranks, [&](RankContext context) {
    context.service = GetParam().service;
    auto use = RunRank(config, context, {}, GetParam().program);
    ASSERT_TRUE(use.ok()) << use.status();
    const std::lock_guard lock(mutex);
    measured[context.rank] = *use;
  });
  for (int rank = 0; rank < ranks; ++rank) {
    const auto planned = RunRankDry(config, GetParam().service, rank, {}, GetParam().program);
    ASSERT_TRUE(planned.ok()) << planned.status();
    EXPECT_GT(planned->device().total, 0);
    EXPECT_THAT(DifferencesOf(*planned, measured[rank]), IsEmpty()) << "rank " << rank;
    ASSERT_EQ(planned->traffic.size(), measured[rank].traffic.size());
    for (size_t i = 0; i < planned->traffic.size(); ++i) {
      EXPECT_EQ(planned->traffic[i].sent_bytes, measured[rank].traffic[i].sent_bytes);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Services, PlanAgainstRun,
    ::testing::Values(
        Case{"policy_trainer", {}},
        Case{"policy_trainer", {"actor.dtype=fp32", "actor.max_tokens_per_micro_batch=1024"}},
        Case{"policy_trainer", {"actor.max_tokens_per_micro_batch=0", "actor.micro_train_batch_size=2"}},
        Case{"policy_trainer", {"actor.zero_stage=0"}}, Case{"policy_trainer", {"actor.zero_stage=2"}},
        Case{"policy_trainer", {"actor.gradient_checkpointing=false"}},
        Case{"policy_trainer",
             {"actor.dtype=fp32", "actor.gradient_checkpointing=false", "services.policy_trainer.ranks=1"}},
        Case{"critic_trainer", {}}, Case{"critic_trainer", {"critic.dtype=fp32", "critic.zero_stage=2"}},
        Case{"critic_trainer", {"critic.optim=sgd", "critic.ema_decay=0.9"}}, Case{"scorer", {}},
        Case{"scorer", {"reference.zero_stage=0", "reference.dtype=fp32"}},
        Case{"scorer", {"reference.offload_param=true"}}, Case{"rollout", {}},
        Case{"rollout", {"rollout.zero_stage=3", "rollout.dtype=fp32"}},
        Case{"rollout", {"rollout.tensor_parallel_size=2"}},
        Case{"rollout", {"rollout.tensor_parallel_size=2", "rollout.dtype=fp32"}},
        Case{"rollout", {"rollout.tensor_parallel_size=2", "services.rollout.ranks=4"}},
        Case{"rollout", {"rollout.tensor_parallel_size=4", "services.rollout.ranks=4"}},
        Case{"policy_trainer", {"sft.data=rows.jsonl"}, Program::kSft},
        Case{"policy_trainer", {"preference.data=pairs.jsonl", "actor.max_tokens_per_micro_batch=1024"}, Program::kDpo},
        Case{"scorer", {"preference.data=pairs.jsonl"}, Program::kDpo},
        Case{"critic_trainer",
             {"preference.data=pairs.jsonl", "critic.max_tokens_per_micro_batch=1024", "train.train_batch_size=3",
              "critic.dtype=fp32"},
             Program::kRewardModel},
        Case{"policy_trainer", {"actor.lora.r=8"}}, Case{"policy_trainer", {"actor.lora.r=8", "actor.zero_stage=2"}},
        Case{"policy_trainer", {"actor.lora.r=8", "actor.zero_stage=0", "actor.gradient_checkpointing=false"}},
        Case{"policy_trainer", {"actor.lora.r=8", "actor.adam_offload=true", "actor.offload_param=true"}},
        Case{"policy_trainer", {"actor.lora.r=8", "actor.lora.target_modules=q_proj,down_proj", "actor.dtype=fp32"}},
        Case{"policy_trainer", {"actor.lora.r=8", "sft.data=rows.jsonl"}, Program::kSft},
        Case{"policy_trainer", {"actor.lora.r=8", "preference.data=pairs.jsonl"}, Program::kDpo},
        Case{"rollout", {"actor.lora.r=8"}},
        Case{"rollout", {"actor.lora.r=8", "rollout.zero_stage=3", "rollout.dtype=fp32"}},
        Case{"rollout", {"actor.lora.r=8", "rollout.tensor_parallel_size=2"}},
        Case{"critic_trainer", {"critic.lora.r=8"}},
        Case{"critic_trainer", {"critic.lora.r=8", "critic.zero_stage=2", "critic.dtype=fp32", "critic.ema_decay=0.9"}},
        Case{"critic_trainer", {"critic.lora.r=8", "preference.data=pairs.jsonl"}, Program::kRewardModel}));

// Runs one forward of a sharded model in which a gathered group is held or not; what its ledger tells.
RankUse ForwardWith(const RunConfig& config, const RankContext& context, bool leak) {
  Ledger ledger;
  auto group = JoinRanks(context, leak ? "leaking" : "model");
  EXPECT_TRUE(group.ok()) << group.status();
  ShardedModelOptions options;
  options.device = DeviceOf(context);
  auto model = ShardedModel::Load(config.actor().pretrain(), options, group->get(), &ledger);
  EXPECT_TRUE(model.ok()) << model.status();
  std::optional<GatheredGroup> leaked;
  if (leak) leaked = (*model)->Gather((*model)->layout().block_group(0));
  PackedSequences batch;
  batch.ids_T = at::zeros({512}, at::kLong);
  batch.cu_seqlens = {0, 512};
  (*model)->Forward(batch, [](const at::Tensor&, const at::Tensor&) {});
  RankUse use;
  use.tiers = TiersOf(DescribeRank(context, ledger));
  return use;
}

TEST(Plan, AGatheredGroupThatIsNeverReleasedDiffersFromThePlan) {
  const RunConfig config = Config(NewModel(), {});
  RunEngineRanks(2, [&](const RankContext& context) {
    RankContext dry = context;
    dry.device = "meta";
    const RankUse planned = ForwardWith(config, dry, /*leak=*/false);
    EXPECT_THAT(DifferencesOf(planned, ForwardWith(config, context, /*leak=*/false)), IsEmpty());
    EXPECT_THAT(DifferencesOf(planned, ForwardWith(config, context, /*leak=*/true)),
                Contains(HasSubstr("device gathered: planned")));
  });
}

TEST(Plan, AddsUpTheServicesOfADevice) {
  const RunConfig config = OnGpus(NewModel(), int64_t{1} << 40, {});
  OutsideTensors outside;
  outside.cuda_context = 1000;
  outside.nccl_of_more = 100;
  Planner planner(kServiceNames, outside);
  const auto plan = planner.MakePlan(config);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->services.size(), 4);
  ASSERT_EQ(plan->devices.size(), 1);
  EXPECT_EQ(plan->devices[0].count, 4);
  EXPECT_EQ(plan->devices[0].name, "GPUs 0-3 of node 0");
  int64_t sum = 0;
  for (const ServicePlan& service : plan->services) {
    EXPECT_GT(service.use.device().total, 0) << service.service;
    EXPECT_EQ(service.outside_device, 1100);
    sum += service.use.device().total + 1100;
  }
  EXPECT_EQ(plan->devices[0].bytes, sum);
  EXPECT_TRUE(plan->fits());
  EXPECT_THAT(PrintPlan(config, *plan),
              AllOf(HasSubstr("fits"), HasSubstr("\nMicro-batches: up to 512 tokens (1 sequence of 512) a rank\n")));
}

TEST(Plan, CountsNcclOfEachGroupThatARankIsIn) {
  OutsideTensors outside;
  outside.nccl_of_two = 10;
  outside.nccl_of_more = 100;
  Planner planner({"policy_trainer", "rollout"}, outside);
  const auto of_both = [&](const std::vector<std::string>& overrides) {
    const auto plan = planner.MakePlan(OnGpus(NewModel(), int64_t{1} << 40, overrides));
    EXPECT_TRUE(plan.ok()) << plan.status();
    std::map<std::string, int64_t> outside_device;
    for (const ServicePlan& service : plan->services) outside_device[service.service] = service.outside_device;
    return std::pair(outside_device.at("policy_trainer"), outside_device.at("rollout"));
  };
  EXPECT_EQ(of_both({}), std::pair(int64_t{100}, int64_t{100}));
  // All four ranks, two that shard together, two with the same shard; two of an engine.
  EXPECT_EQ(of_both({"actor.shard_size=2", "rollout.tensor_parallel_size=2"}), std::pair(int64_t{120}, int64_t{110}));
  EXPECT_EQ(of_both({"actor.shard_size=4", "rollout.tensor_parallel_size=4"}), std::pair(int64_t{100}, int64_t{100}));
}

// Held against what the allocator says of a call that is read and handed to ranks.
TEST(Plan, CountsWhatALeaderHoldsOfItsLargestCall) {
  const RunConfig config = Config(NewModel(), {"rollout.rollout_batch_size=512", "rollout.n_samples_per_prompt=2",
                                               "train.train_batch_size=1024", "services.policy_trainer.ranks=4"});
  TrainingSequence item;
  for (int t = 0; t < 512; ++t) {
    item.mutable_tokens()->add_ids(0);
    item.mutable_tokens()->add_action_mask(t >= 256);
  }
  for (const std::string_view array : {kLossWeights, kOldLogProbs, kAdvantages, kRolloutLogProbs, kReferenceLogProbs}) {
    AddArray(array, &item).Resize(256, 0);
  }
  PolicyUpdateRequest request;
  *request.mutable_item() = item;
  const std::string wire = request.SerializeAsString();
  const auto allocated = [] {
    const auto info = mallinfo2();
    return static_cast<int64_t>(info.uordblks + info.hblkhd);
  };
  BatchSplit split;
  split.items.resize(4);
  split.micro_batch_sizes.resize(4);
  for (size_t i = 0; i < 1024; ++i) split.items[i % 4].push_back(i);
  const int64_t before = allocated();
  std::vector<TrainingSequence> items;
  for (int i = 0; i < 1024; ++i) {
    PolicyUpdateRequest read;
    ASSERT_TRUE(read.ParseFromString(wire));
    items.push_back(std::move(*read.mutable_item()));
  }
  const auto one = [&](size_t i) -> const TrainingSequence& { return items[i]; };
  const std::vector<RankInput> inputs = MakeInputs(UpdateCall(), one, split);
  const auto held = static_cast<double>(allocated() - before);
  EXPECT_NEAR(static_cast<double>(LeaderCallBytes(config, "policy_trainer")), held, 0.15 * held);
}

TEST(Plan, AddsCallsToTheHostOfTheLeader) {
  const std::string model = NewModel();
  const auto plan = [&](const std::string& sequences) {
    const RunConfig config = Config(model, {"rollout.rollout_batch_size=" + sequences, "train.train_batch_size=128"});
    auto made = Planner(kServiceNames, {}).MakePlan(config);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  };
  const Plan few = plan("128"), many = plan("65536");
  // At least ids and log-probabilities of all, in scorer, critic and policy trainer.
  EXPECT_GT(many.hosts[0].bytes - few.hosts[0].bytes, int64_t{3} * (65536 - 128) * (512 + 256) * 4);
  ASSERT_EQ(many.leaders.size(), 4);
  for (size_t i = 0; i < 4; ++i) EXPECT_GT(many.leaders[i].calls, few.leaders[i].calls) << many.leaders[i].service;
}

TEST(Plan, AddsTheProgramsThatAScorerStarts) {
  const std::string model = NewModel();
  for (const std::string reference : {"algorithm.kl.init_kl_coef=0.01", "algorithm.kl.init_kl_coef=0"}) {
    RunConfig code = Config(model, {reference});
    code.mutable_reward()->mutable_source(0)->clear_rule();
    const RunConfig config = Resolved(code, {"reward.source.0.code=python", "reward.source.0.workers=64",
                                             "cluster.num_nodes=1", "cluster.host_memory_bytes=17179869184"});
    const auto plan = Planner(kServiceNames, {}).MakePlan(config);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_FALSE(plan->fits());
    EXPECT_EQ(plan->leaders.back().service, "scorer");
    EXPECT_EQ(plan->leaders.back().programs, int64_t{64} << 30);
    EXPECT_EQ(plan->hosts[0].ranks.at("scorer"), 2);
    EXPECT_THAT(PrintPlan(config, *plan),
                AllOf(HasSubstr("Programs that the scorer starts, beside its first rank: 64.00 GiB"),
                      HasSubstr("does not fit")));
  }
}

TEST(Plan, OnCpusAProcessHoldsFreedMemoryBesideItsTensors) {
  const RunConfig config = Config(NewModel(), {});
  OutsideTensors outside;
  outside.process = 5000;
  const auto plan = Planner(kServiceNames, outside).MakePlan(config);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const ServicePlan& service : plan->services) {
    const int64_t freed = service.outside_host - 5000, bound = service.use.device().total / 64 + (2 << 20);
    EXPECT_GT(freed, 0) << service.service;
    EXPECT_LE(freed, bound) << service.service;
    if (service.service != "policy_trainer") continue;
    EXPECT_EQ(freed, bound) << "its temporaries are more";
  }
}

TEST(Plan, OnGpusAProcessHoldsPinnedMemoryBesideWhatItHasInHostMemory) {
  const std::string model = NewModel();
  OutsideTensors outside;
  outside.process = 1;
  outside.process_on_gpu = 5000;
  const auto use = [&](const std::vector<std::string>& overrides) {
    const auto plan = Planner({"critic_trainer"}, outside).MakePlan(OnGpus(model, int64_t{1} << 40, overrides));
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan->services[0];
  };
  EXPECT_EQ(use({}).outside_host, 5000);
  const ServicePlan offloads = use({"critic.gradient_checkpointing=true", "critic.activation_offload=true"});
  const int64_t inputs = offloads.use.host().total;
  EXPECT_GT(inputs, 0);
  EXPECT_EQ(offloads.outside_host, 5000 + std::min(inputs, inputs / 8 + (64 << 20)));
}

// With the optimizer in host memory a reduced gradient goes there while the next group's is reduced.
TEST(Plan, CountsTheBuffersThroughWhichGradientsGoToTheHost) {
  const std::string model = NewModel();
  const auto use = [&](const std::vector<std::string>& overrides) {
    const auto plan = Planner({"critic_trainer"}, {}).MakePlan(OnGpus(model, int64_t{1} << 40, overrides));
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan->services[0].use;
  };
  const auto communication = [](const TierUse& tier) {
    return tier.categories[static_cast<int>(MemoryCategory::kCommunication)];
  };
  const RankUse without = use({}), with = use({"critic.adam_offload=true"});
  EXPECT_EQ(communication(without.host()), 0);
  // A fourth of a block (two of 256 x 256, two of 256 x 128, three of 256 x 704, norms), fp32.
  const int64_t part = (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 704 + 2 * 256) / 4 * 4;
  EXPECT_EQ(communication(with.host()), part);
  EXPECT_EQ(communication(with.device()), communication(without.device()) + part);
}

// A step asks the policy for log-probabilities also where the rollout's are trained with: they are compared.
TEST(Plan, CountsThePolicysForwardsWhereverOldLogProbabilitiesComeFrom) {
  const std::string model = NewModel();
  const auto sent = [&](const std::string& source) {
    const auto use = RunRankDry(Config(model, {"algorithm.old_log_prob_source=" + source}), "policy_trainer", 0, {});
    EXPECT_TRUE(use.ok()) << use.status();
    return use->traffic.at(0).sent_bytes;
  };
  EXPECT_EQ(sent("rollout"), sent("trainer"));
}

TEST(Plan, CountsTheForwardsOfAReferenceThatThePolicyTrainerAnswersFor) {
  const std::string model = NewModel();
  const auto sent = [&](const std::string& kl) {
    const auto use =
        RunRankDry(Config(model, {"actor.lora.r=8", "algorithm.kl.init_kl_coef=" + kl}), "policy_trainer", 0, {});
    EXPECT_TRUE(use.ok()) << use.status();
    return use->traffic.at(0).sent_bytes;
  };
  // 4 forwards of a rank, and for each of two ranks half of all other parameters than are adapters' is the other's.
  const int64_t parameters = 2 * 2048 * 256 + 256 + 4 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 704 + 2 * 256);
  EXPECT_NEAR(static_cast<double>(sent("0.01") - sent("0")), 4.0 * parameters * 2 / 2, 0.01 * 4 * parameters);
}

TEST(Plan, ARolloutTakesInAdaptersAloneWhateverWasPlannedBefore) {
  const std::string model = NewModel();
  Planner planner({"rollout"}, {});
  const auto staged = [&](const std::vector<std::string>& overrides) {
    const auto plan = planner.MakePlan(OnGpus(model, int64_t{1} << 40, overrides));
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan->services.at(0).use.host().categories[static_cast<int>(MemoryCategory::kParameters)];
  };
  const int64_t whole = staged({});
  // A and B of seven products in four blocks, bf16.
  const int64_t numbers = 4 * (2 * (256 + 256) + 2 * (256 + 128) + 3 * (256 + 704));
  EXPECT_EQ(staged({"actor.lora.r=8", "services.scorer="}), numbers * 8 * 2);
  EXPECT_EQ(staged({"actor.lora.r=16", "services.scorer="}), numbers * 16 * 2);
  EXPECT_EQ(staged({}), whole);
}

TEST(Plan, KeepsPlacedServicesApart) {
  const RunConfig config =
      Resolved(OnGpus(NewModel(), int64_t{1} << 40, {}),
               {"services.rollout.ranks=2", "services.policy_trainer.ranks=2", "placement.0.service=rollout",
                "placement.0.gpus=0,1", "placement.1.service=policy_trainer", "placement.1.gpus=2,3"});
  const auto plan = Planner({"rollout", "policy_trainer"}, {}).MakePlan(config);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->devices.size(), 2);
  for (const PlaceUse& device : plan->devices) {
    EXPECT_EQ(device.count, 2);
    EXPECT_EQ(device.ranks.size(), 1);
  }
  EXPECT_EQ(PlaceRanks(config)->at("policy_trainer"), (std::vector<RankPlace>{{0, 2}, {0, 3}}));
}

TEST(Plan, SaysWhatOfTheClusterItLeavesUnused) {
  const std::string model = NewModel();
  const auto printed = [&](const std::vector<std::string>& overrides) {
    const RunConfig config = OnGpus(model, int64_t{1} << 40, overrides);
    const auto plan = Planner({"rollout", "scorer"}, {}).MakePlan(config);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return PrintPlan(config, *plan);
  };
  EXPECT_THAT(printed({}), AllOf(Not(HasSubstr("On CPUs")), Not(HasSubstr("have none"))));
  EXPECT_THAT(printed({"services.rollout.ranks=1", "services.scorer.ranks=3"}),
              HasSubstr("1 of 4 GPUs have none of these ranks"));
  EXPECT_THAT(printed({"services.scorer.device=cpu"}), HasSubstr("On CPUs, as services.*.device says: scorer\n"));
}

TEST(Plan, ShardsShrinkWithTheNumberOfRanks) {
  const std::string model = NewModel();
  std::vector<int64_t> optimizer;
  for (const int nodes : {1, 1024}) {
    const RunConfig config = OnGpus(
        model, int64_t{1} << 40,
        {"cluster.num_nodes=" + std::to_string(nodes), "services.policy_trainer.ranks=" + std::to_string(4 * nodes)});
    const auto plan = Planner({"policy_trainer"}, {}).MakePlan(config);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->devices[0].count, 4 * nodes);
    optimizer.push_back(plan->services[0].use.device().categories[static_cast<int>(MemoryCategory::kOptimizer)]);
  }
  EXPECT_GT(optimizer[0], 50 * optimizer[1]);  // not 1024: shards are padded
}

TEST(Plan, ATensorParallelRankHasItsShareOfWeightsAndOfEachTokensCache) {
  const std::string model = NewModel();
  const auto use = [&](const std::string& parallel) {
    const RunConfig config = Config(model, {"rollout.tensor_parallel_size=" + parallel, "services.rollout.ranks=4"});
    const auto planned = RunRankDry(config, "rollout", 3, {});
    EXPECT_TRUE(planned.ok()) << planned.status();
    return planned.ok() ? planned->device().categories : std::array<int64_t, kNumMemoryCategories>{};
  };
  const auto whole = use("1"), share = use("4");
  const auto parameters = static_cast<int>(MemoryCategory::kParameters);
  EXPECT_GT(whole[parameters], share[parameters] * 38 / 10);
  EXPECT_LT(whole[parameters], share[parameters] * 4);
  const RunConfig uneven = Config(model, {"rollout.tensor_parallel_size=3", "services.rollout.ranks=3"});
  EXPECT_THAT(std::string(RunRankDry(uneven, "rollout", 0, {}).status().message()), HasSubstr("num_attention_heads"));
}

TEST(Plan, CountsTheAnswersOfAnEvaluation) {
  const auto activations = [model = NewModel()](const std::vector<std::string>& overrides) {
    std::vector<std::string> all = {"rollout.max_num_seqs=64", "rollout.max_num_batched_tokens=64"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const auto use = RunRankDry(Config(model, all), "rollout", 0, {});
    EXPECT_TRUE(use.ok()) << use.status();
    return use->device().categories;
  };
  const std::string eval = "eval.data=/held_out.jsonl";
  const auto batch_of = [&](int sequences) {
    return activations({absl::StrCat("rollout.rollout_batch_size=", sequences)});
  };
  const std::string small = "rollout.rollout_batch_size=8";
  EXPECT_NE(batch_of(128), batch_of(8));
  EXPECT_EQ(activations({small, eval}), batch_of(128)) << "as many as run at once: its rows are not known";
  EXPECT_EQ(activations({small, eval, "eval.max_samples=20", "eval.n_samples_per_prompt=2", "eval.temperature=1"}),
            batch_of(40));
  EXPECT_EQ(activations({small, eval, "eval.max_samples=4"}), batch_of(8)) << "fewer than a step's";
}

TEST(Plan, CountsASequenceForEachTurnOfAnAgentsEpisodes) {
  const auto use = [model = NewModel()](const std::string& service, const std::vector<std::string>& overrides) {
    std::vector<std::string> all = {"actor.max_tokens_per_micro_batch=2048"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const auto planned = RunRankDry(Config(model, all), service, 0, {});
    EXPECT_TRUE(planned.ok()) << planned.status();
    return planned.ok() ? planned->device().categories : std::array<int64_t, kNumMemoryCategories>{};
  };
  const std::vector<std::string> episodes = {
      "rollout.rollout_batch_size=1", "train.train_batch_size=1", "rollout.generate_max_len=64",
      "agent.command=true",           "agent.max_turns=8",        "data.apply_chat_template=true"};
  EXPECT_EQ(use("policy_trainer", episodes),
            use("policy_trainer", {"rollout.rollout_batch_size=8", "train.train_batch_size=8", "data.prompt_max_len=1",
                                   "rollout.generate_max_len=511"}));
  const auto rollout = [&](const std::string& processes) {
    std::vector<std::string> all = {"rollout.max_num_seqs=64",        "rollout.max_num_batched_tokens=64",
                                    "rollout.rollout_batch_size=512", "agent.command=true",
                                    "data.apply_chat_template=true",  "agent.processes=" + processes};
    return use("rollout", all);
  };
  EXPECT_EQ(rollout("128"), rollout("256"));
  EXPECT_NE(rollout("64"), rollout("128")) << "an episode waits for one answer at a time";
}

TEST(Plan, NeedsRoomForOnePhaseAtATimeWhereTheRolloutSleeps) {
  const auto plan = [model = NewModel()](const std::vector<std::string>& overrides) {
    auto made = Planner(kServiceNames, {}).MakePlan(OnGpus(model, int64_t{1} << 30, overrides));
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  };
  const auto sum = [](const Plan& plan, const std::vector<std::string>& working) {
    int64_t bytes = 0;
    for (const ServicePlan& service : plan.services) {
      const bool works = std::ranges::find(working, service.service) != working.end();
      bytes += works ? service.device_bytes() : service.asleep_device_bytes();
    }
    return bytes;
  };
  const Plan awake = plan({}), sleeps = plan({"rollout.enable_sleep=true"});
  ASSERT_EQ(sleeps.devices.size(), 1);
  EXPECT_EQ(awake.devices[0].bytes, sum(awake, kServiceNames));
  const int64_t policy = sum(sleeps, {"policy_trainer", "scorer"}), critic = sum(sleeps, {"critic_trainer", "scorer"});
  // One trainer at a time is saved while the rollout is awake.
  int64_t saving = 0;
  for (const ServicePlan& service : sleeps.services) {
    const int64_t gathered = service.use.device().categories[static_cast<int>(MemoryCategory::kGathered)];
    if (service.service.ends_with("_trainer")) saving = std::max(saving, gathered);
  }
  EXPECT_GT(saving, 0);
  const int64_t answers = sum(sleeps, {"rollout", "scorer"}) + saving;
  EXPECT_EQ(sleeps.devices[0].phases, (std::array<int64_t, 3>{answers, policy, critic}));
  EXPECT_EQ(sleeps.devices[0].bytes, std::max({answers, policy, critic}));
  const Plan offloads = plan({"rollout.enable_sleep=true", "actor.sleep_offload=true", "critic.sleep_offload=true"});
  for (size_t i = 0; i < sleeps.services.size(); ++i) {
    const ServicePlan &stays = sleeps.services[i], &leaves = offloads.services[i];
    SCOPED_TRACE(stays.service);
    EXPECT_EQ(leaves.device_bytes(), stays.device_bytes());
    if (stays.service == "rollout") {
      EXPECT_EQ(stays.asleep_device_bytes(), 0) << "neither cache nor weights";
    }
    if (!stays.service.ends_with("_trainer")) continue;
    EXPECT_LT(stays.asleep_device_bytes(), stays.device_bytes());
    // Of 16 bytes a parameter 12: the gradient, and two moments, which are on the host.
    const int64_t states = leaves.host_bytes() - stays.host_bytes();
    EXPECT_GT(states, 0);
    EXPECT_EQ(stays.asleep_device_bytes() - leaves.asleep_device_bytes(), states * 3 / 2);
  }
  EXPECT_LT(offloads.devices[0].bytes, sleeps.devices[0].bytes);
}

TEST(Plan, OfSeveralEnginesEachHasItsPartOfTheBatch) {
  const auto plan = [model = NewModel()](const std::vector<std::string>& overrides) {
    std::vector<std::string> all = {"rollout.tensor_parallel_size=2", "rollout.rollout_batch_size=64",
                                    "rollout.max_num_seqs=8"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return RunRankDry(Config(model, all), "rollout", 0, {});
  };
  const auto one = plan({"services.rollout.ranks=2"}), two = plan({"services.rollout.ranks=4"});
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->device().categories, one->device().categories);
  ASSERT_EQ(two->traffic.size(), 1u);
  EXPECT_EQ(two->traffic[0].ranks, 2);
  EXPECT_NEAR(2. * static_cast<double>(two->traffic[0].sent_bytes), static_cast<double>(one->traffic[0].sent_bytes),
              0.001 * static_cast<double>(one->traffic[0].sent_bytes));
  const auto uneven = plan({"services.rollout.ranks=3"});
  EXPECT_THAT(
      std::string(uneven.status().message()),
      HasSubstr("rollout.tensor_parallel_size is 2; allowed: 1, 3 (the divisors of services.rollout.ranks, 3)"));
}

TEST(Plan, TensorParallelRanksSendTwoSumsABlockAndTheirPartOfTheLogits) {
  const int64_t batch = 8, samples = 3, prompt = 256, answer = 200;
  const RunConfig config = Config(
      NewModel(), {"rollout.tensor_parallel_size=2", "rollout.n_samples_per_prompt=3", "rollout.generate_max_len=200"});
  const auto planned = RunRankDry(config, "rollout", 0, {});
  ASSERT_TRUE(planned.ok()) << planned.status();
  ASSERT_EQ(planned->traffic.size(), 1u);
  EXPECT_EQ(planned->traffic[0].ranks, 2);
  // All but the last token of an answer are computed, each prompt once. An all-reduce over two ranks sends as many
  // bytes as it sums: fp32 for the four blocks, bf16 for the embedding. Of 2,048 logits a rank sends half.
  const int64_t tokens = batch * prompt + batch * samples * (answer - 1);
  const int64_t expected = tokens * (2 * 4 * 256 * 4 + 256 * 2) + batch * samples * answer * (1024 * 4);
  EXPECT_NEAR(static_cast<double>(planned->traffic[0].sent_bytes), static_cast<double>(expected), 0.01 * expected);
}

TEST(Plan, TheCacheTakesTheShareThatIsGiven) {
  const std::string model = NewModel();
  const int64_t gpu = int64_t{128} << 20;
  const auto kv_at = [&](const std::string& share) {
    RunConfig config = OnGpus(model, gpu, {"rollout.max_num_seqs=1024"});
    config.mutable_rollout()->clear_kv_cache_bytes();
    return Planner({"rollout"}, {}).MakePlan(Resolved(config, {"rollout.gpu_memory_utilization=" + share}));
  };
  const auto half = kv_at("0.5"), most = kv_at("0.9");
  ASSERT_TRUE(half.ok() && most.ok()) << half.status() << most.status();
  const double more = static_cast<double>(most->services[0].use.kv_cache_bytes - half->services[0].use.kv_cache_bytes);
  EXPECT_NEAR(more / static_cast<double>(gpu), 0.4, 0.01);
  const auto none = kv_at("0.01");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("rollout.gpu_memory_utilization is 0.01"));
}

TEST(Plan, RecordedForwardsTakeFromTheCacheWhatTheyKeep) {
  const std::string model = NewModel();
  const auto plan_with = [&](const std::vector<std::string>& overrides) {
    RunConfig config = OnGpus(model, int64_t{128} << 20, {"rollout.max_num_seqs=1024"});
    config.mutable_rollout()->clear_kv_cache_bytes();
    std::vector<std::string> all = {"rollout.gpu_memory_utilization=0.5"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return Planner({"rollout"}, {}).MakePlan(Resolved(config, all));
  };
  const auto recorded = plan_with({}), eager = plan_with({"rollout.enforce_eager=true"});
  ASSERT_TRUE(recorded.ok() && eager.ok()) << recorded.status() << eager.status();
  const auto of = [](const auto& plan, MemoryCategory category) {
    return plan->services[0].use.device().categories[static_cast<int>(category)];
  };
  const int64_t kept = of(recorded, MemoryCategory::kActivations) - of(eager, MemoryCategory::kActivations);
  EXPECT_GT(kept, 0);
  EXPECT_NEAR(static_cast<double>(of(eager, MemoryCategory::kKvCache) - of(recorded, MemoryCategory::kKvCache)),
              static_cast<double>(kept), 0.1 * static_cast<double>(kept) + 65536);
}

TEST(Plan, NamesWhatIsMissing) {
  const std::string model = NewModel();
  RunConfig config = OnGpus(model, int64_t{1} << 40, {});
  config.mutable_cluster()->clear_gpu_memory_bytes();
  EXPECT_THAT(std::string(Planner({"scorer"}, {}).MakePlan(config).status().message()), HasSubstr("cluster.gpu"));
  config.clear_cluster();
  EXPECT_THAT(std::string(Planner({"scorer"}, {}).MakePlan(config).status().message()),
              HasSubstr("cluster is not set"));
  config.mutable_critic()->clear_pretrain();
  EXPECT_THAT(std::string(Planner({"critic_trainer"}, {}).MakePlan(config).status().message()),
              HasSubstr("critic.pretrain"));
}

}  // namespace
}  // namespace quartet
