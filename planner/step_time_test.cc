#include "planner/step_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "planner/plan.h"
#include "planner/report.h"
#include "planner/testing/small_runs.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The small model: 4 blocks of hidden size 256, 8 heads of 32, 4 of keys and values, 704 between; 2,048 words.
constexpr double kBlocks = 4 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 704);
constexpr double kHead = 256 * 2048;
// 8 sequences of 256 + 256 tokens, over 4 ranks.
constexpr double kOwn = 2;
constexpr double kBlockForward = 2 * kBlocks * 512 + 4 * 4 * 256 * (512 * 512 / 2);
constexpr double kHeadForward = 2 * kHead * 256;
constexpr GpuRates kRates = {.bf16_flops = 1e12, .fp32_flops = 1e11, .bytes = 1e10};

StepTime Estimated(const std::vector<std::string>& overrides, const GpuRates& rates = kRates) {
  const RunConfig config = OnGpus(NewModel(), int64_t{1} << 40, overrides);
  const auto plan = Planner(kServiceNames, {}).MakePlan(config);
  EXPECT_TRUE(plan.ok()) << plan.status();
  const auto step = EstimateStep(config, *plan, rates);
  EXPECT_TRUE(step.ok()) << step.status();
  return *step;
}

std::map<std::string, ServiceTime> ByName(const StepTime& step) {
  std::map<std::string, ServiceTime> times;
  for (const ServiceTime& time : step.services) times[time.service] = time;
  return times;
}

TEST(StepTime, CountsTwoOperationsAWeightAndTokenAndThoseOfAttention) {
  auto times = ByName(Estimated({}));
  const double forward = kBlockForward + kHeadForward;
  EXPECT_NEAR(times["scorer"].flops, kOwn * forward, 1);
  // Forward; and forward, forward again, and backward.
  EXPECT_NEAR(times["policy_trainer"].flops, kOwn * (forward + 4 * forward), 1);
  EXPECT_NEAR(times["policy_trainer"].computing_seconds, times["policy_trainer"].flops / 1e12, 1e-9);
  // A scalar for each word of the answer instead of logits.
  EXPECT_NEAR(times["critic_trainer"].flops, kOwn * 5 * (kBlockForward + 2 * 256 * 256), 1);
  times = ByName(Estimated({"actor.gradient_checkpointing=false", "actor.dtype=fp32", "algorithm.max_epochs=2"}));
  EXPECT_NEAR(times["policy_trainer"].flops, kOwn * (forward + 2 * (3 * kBlockForward + 4 * kHeadForward)), 1);
  EXPECT_NEAR(times["policy_trainer"].computing_seconds, times["policy_trainer"].flops / 1e11, 1e-9);
}

TEST(StepTime, OfAModelThatIsNotTrainedNoGradientsOfMatricesAreComputed) {
  auto times = ByName(Estimated({"actor.lora.r=8", "services.scorer="}));
  const double forward = kBlockForward + kHeadForward;
  // Forward; forward as the reference; forward, again, and backward, where attention and head have two and one product.
  EXPECT_NEAR(times["policy_trainer"].flops, kOwn * (2 * forward + 4 * forward - 2 * kBlocks * 512 - kHeadForward), 1);
  EXPECT_FALSE(times.contains("scorer"));
  // A critic's head is trained with the adapters.
  EXPECT_NEAR(ByName(Estimated({"critic.lora.r=8"}))["critic_trainer"].flops,
              kOwn * (5 * (kBlockForward + 2 * 256 * 256) - 2 * kBlocks * 512), 1);
}

TEST(StepTime, TrainersComputeAPromptOnceForItsSamples) {
  auto times = ByName(Estimated({"rollout.n_samples_per_prompt=4"}));  // 8 sequences a rank
  const double pairs = 256 * 256 / 2. / 4 + 256 * (256 + 128);
  const double forward = 2 * kBlocks * (256 / 4. + 256) + 4 * 4 * 256 * pairs + kHeadForward;
  EXPECT_NEAR(times["scorer"].flops, 8 * forward, 1);
  EXPECT_NEAR(times["policy_trainer"].flops, 8 * 5 * forward, 1);
  // Attention on a GPU takes shared tokens in bf16 alone.
  times = ByName(Estimated({"rollout.n_samples_per_prompt=4", "actor.dtype=fp32"}));
  EXPECT_NEAR(times["policy_trainer"].flops, 8 * 5 * (kBlockForward + kHeadForward), 1);
}

TEST(StepTime, DecodingReadsTheWeightsOnceAForwardAndTheCacheOfEachSequence) {
  // Each of 4 ranks has 2 sequences, which run together: 256 forwards.
  auto rollout = ByName(Estimated({"rollout.kv_cache_bytes=1073741824"}))["rollout"];
  const double pairs = 256 * (256 + 128);
  const double cache = 2 * pairs * (4 * 2 * 128 * 2);  // keys and values of 4 blocks, 4 heads of 32, bf16
  EXPECT_NEAR(rollout.bytes, 256 * 2 * (kBlocks + kHead) + cache, 1e-6 * rollout.bytes);
  const double prefill = 2 * (2 * kBlocks * 256 + 4 * 4 * 256 * (256 * 256 / 2));
  const double decode = 2 * (256 * 2 * (kBlocks + kHead) + 4 * 4 * 256 * pairs);
  EXPECT_NEAR(rollout.flops, prefill + decode, 1);
  EXPECT_NEAR(rollout.computing_seconds, prefill / 1e12 + rollout.bytes / 1e10, 1e-9);
  // One by one, and four neighbours an engine, each with a fourth of all.
  rollout = ByName(Estimated({"rollout.kv_cache_bytes=1073741824", "rollout.max_num_seqs=1"}))["rollout"];
  EXPECT_NEAR(rollout.bytes, 2 * 256 * 2 * (kBlocks + kHead) + cache, 1e-6 * rollout.bytes);
  rollout = ByName(Estimated({"rollout.kv_cache_bytes=1073741824", "rollout.tensor_parallel_size=4"}))["rollout"];
  EXPECT_NEAR(rollout.flops, prefill + decode, 1) << "of 8 sequences a fourth";
}

TEST(StepTime, ASmallCacheTakesMoreForwards) {
  const RunConfig config =
      OnGpus(NewModel(), int64_t{1} << 40, {"rollout.n_samples_per_prompt=4", "rollout.kv_cache_bytes=1572864"});
  const auto plan = Planner({"rollout"}, {}).MakePlan(config);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto step = EstimateStep(config, *plan, kRates);
  ASSERT_TRUE(step.ok()) << step.status();
  // 8 sequences for each rank, which grow to 256 tokens beside a fourth of a prompt.
  const double tokens = 16. * static_cast<double>(plan->services[0].use.kv_cache_blocks);
  ASSERT_GT(tokens, 512);
  const double at_once = tokens / (256 / 4 + 128);
  ASSERT_LT(at_once, 8);
  const double cache = 8 * 256 * (256 + 128) * (4 * 2 * 128 * 2);
  EXPECT_NEAR(step->services[0].bytes, 8 * 256 / at_once * 2 * (kBlocks + kHead) + cache,
              1e-6 * step->services[0].bytes);
}

TEST(StepTime, IsGenerationAndThenWhatTheBusiestGpuDoes) {
  const StepTime together = Estimated({});
  auto times = ByName(together);
  EXPECT_NEAR(together.generating_seconds, times["rollout"].seconds, 1e-12);
  EXPECT_NEAR(together.training_seconds,
              times["policy_trainer"].seconds + times["critic_trainer"].seconds + times["scorer"].seconds, 1e-12);
  const StepTime apart =
      Estimated({"services.policy_trainer.ranks=2", "services.critic_trainer.ranks=2", "services.scorer.ranks=2",
                 "placement.0.service=policy_trainer", "placement.0.gpus=0,1", "placement.1.service=critic_trainer",
                 "placement.1.gpus=2,3", "placement.2.service=scorer", "placement.2.gpus=2,3"});
  times = ByName(apart);
  EXPECT_NEAR(apart.training_seconds,
              std::max(times["policy_trainer"].seconds, times["critic_trainer"].seconds + times["scorer"].seconds),
              1e-12);
}

TEST(StepTime, ATrainerIsAsSlowAsItsCollectivesWhereTheseAreSlower) {
  const auto unknown = ByName(Estimated({}))["policy_trainer"];
  EXPECT_FALSE(unknown.collectives.has_value());
  EXPECT_EQ(unknown.seconds, unknown.computing_seconds);
  const auto slow = ByName(Estimated({"cluster.intra_node_gbps=0.001"}))["policy_trainer"];
  EXPECT_GT(*slow.collectives, slow.computing_seconds);
  EXPECT_EQ(slow.seconds, *slow.collectives);
  const auto fast = ByName(Estimated({"cluster.intra_node_gbps=1000000"}))["policy_trainer"];
  EXPECT_EQ(fast.seconds, fast.computing_seconds);
}

TEST(StepTime, SaysWhatItIsOfAndWhatIsMissing) {
  const RunConfig config = OnGpus(NewModel(), int64_t{1} << 40, {});
  const auto plan = Planner({"policy_trainer"}, {}).MakePlan(config);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(std::string(EstimateStep(config, *plan, RatesOf(config)).status().message()),
              AllOf(HasSubstr("cluster.gpu"), HasSubstr("--tflops")));
  EXPECT_THAT(PrintStepTime(config, *EstimateStep(config, *plan, kRates), kRates),
              AllOf(HasSubstr("at least"), HasSubstr("512 tokens; bf16 at 1 TFLOP/s, fp32 at 0.1, memory at 10 GB/s"),
                    HasSubstr("without collectives")));
  const RunConfig on_cpus = Config(NewModel(), {});
  const auto cpu_plan = Planner({"scorer"}, {}).MakePlan(on_cpus);
  ASSERT_TRUE(cpu_plan.ok()) << cpu_plan.status();
  for (const GpuRates& rates : {kRates, GpuRates()}) {
    EXPECT_THAT(std::string(EstimateStep(on_cpus, *cpu_plan, rates).status().message()),
                HasSubstr("scorer is on CPUs"));
  }
}

}  // namespace
}  // namespace quartet
