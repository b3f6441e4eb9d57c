#include "planner/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/config/gpus.h"
#include "core/config/run_config.h"
#include "planner/cache_use.h"
#include "planner/plan.h"
#include "planner/report.h"
#include "planner/testing/small_runs.h"

namespace quartet {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// The smallest GPU of which so many bytes leave a twentieth free.
int64_t RoomyFor(int64_t bytes) { return (20 * bytes + 18) / 19; }

TEST(PlanSearch, EachSuggestionFitsWhenItIsPlannedAgain) {
  const std::string model = NewModel();
  const std::vector<std::string> large = {"actor.zero_stage=0", "actor.max_tokens_per_micro_batch=4096",
                                          "actor.gradient_checkpointing=false", "rollout.rollout_batch_size=32"};
  Planner planner(kServiceNames, {});
  const auto roomy = planner.MakePlan(OnGpus(model, int64_t{1} << 40, large));
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  for (const int64_t percent : {90, 50}) {
    const RunConfig config = OnGpus(model, roomy->devices[0].bytes * percent / 100, large);
    const auto plan = planner.MakePlan(config);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_FALSE(plan->fits());
    const int64_t capacity = config.cluster().gpu_memory_bytes();
    EXPECT_EQ(plan->excess(), roomy->devices[0].bytes - (capacity - capacity / 20));
    EXPECT_THAT(PrintPlan(config, *plan), HasSubstr("does not fit"));
    const auto suggestions = Suggest(planner, config, *plan);
    ASSERT_TRUE(suggestions.ok()) << suggestions.status();
    ASSERT_FALSE(suggestions->empty()) << percent;
    for (const Suggestion& suggestion : *suggestions) {
      Planner fresh(kServiceNames, {});
      const auto again = fresh.MakePlan(Resolved(config, suggestion.overrides));
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(again->excess(), 0) << PrintSuggestions({suggestion});
    }
  }
}

TEST(PlanSearch, FindsSeveralChangesThoughMoreNodesWouldDoAlone) {
  const std::string model = NewModel();
  Planner planner(kServiceNames, {});
  const auto fits = planner.MakePlan(OnGpus(
      model, int64_t{1} << 40,
      {"rollout.enable_sleep=true", "actor.sleep_offload=true", "critic.sleep_offload=true",
       "reference.offload_param=true", "rollout.kv_cache_bytes=67108864", "rollout.max_num_batched_tokens=256"}));
  ASSERT_TRUE(fits.ok()) << fits.status();
  const RunConfig config = OnGpus(model, RoomyFor(fits->devices[0].bytes), {});
  const auto plan = planner.MakePlan(config);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_GT(plan->excess(), 0);
  const auto suggestions = Suggest(planner, config, *plan);
  ASSERT_TRUE(suggestions.ok()) << suggestions.status();
  EXPECT_TRUE(std::ranges::any_of(*suggestions, [](const Suggestion& suggestion) {
    return suggestion.config.cluster().num_nodes() == 1;
  })) << PrintSuggestions(*suggestions);
}

TEST(PlanSearch, HasOneTrainerSleepWhereTheOtherUpdatesOnTheHost) {
  const std::string model = NewModel();
  Planner planner(kServiceNames, {});
  const std::vector<std::string> before = {"actor.adam_offload=true"};
  std::vector<std::string> sleeps = before;
  sleeps.emplace_back("rollout.enable_sleep=true");
  sleeps.emplace_back("critic.sleep_offload=true");
  const auto fits = planner.MakePlan(OnGpus(model, int64_t{1} << 40, sleeps));
  ASSERT_TRUE(fits.ok()) << fits.status();
  const RunConfig config = OnGpus(model, RoomyFor(fits->devices[0].bytes), before);
  const auto plan = planner.MakePlan(config);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_GT(plan->excess(), 0);
  const auto suggestions = Suggest(planner, config, *plan);
  ASSERT_TRUE(suggestions.ok()) << suggestions.status();
  EXPECT_THAT(PrintSuggestions(*suggestions), HasSubstr("  rollout.enable_sleep=true critic.sleep_offload=true  ("));
}

TEST(PlanSearch, FindsTheFewestGpusAndTheLargestMicroBatch) {
  const std::string model = NewModel();
  Planner planner({"policy_trainer"}, {});
  const auto bytes_at = [&](const std::vector<std::string>& overrides) {
    return planner.MakePlan(OnGpus(model, int64_t{1} << 40, overrides))->devices[0].bytes;
  };
  const int64_t with_four = bytes_at({});
  const RunConfig config = OnGpus(model, RoomyFor(with_four), {});
  const auto fewest = FewestGpus(planner, config);
  ASSERT_TRUE(fewest.ok()) << fewest.status();
  EXPECT_EQ(fewest->plan.excess(), 0);
  const auto tight = planner.MakePlan(OnGpus(model, RoomyFor(with_four) - 20, {}));
  EXPECT_TRUE(tight->fits());
  EXPECT_GT(tight->excess(), 0);
  EXPECT_THAT(PrintPlan(OnGpus(model, RoomyFor(with_four) - 20, {}), *tight), HasSubstr("tight, "));
  EXPECT_EQ(fewest->plan.devices[0].count, 4);
  EXPECT_EQ(FewestGpus(planner, OnGpus(model, 1000, {})).status().code(), absl::StatusCode::kNotFound);

  // Ranks come in multiples of what is sharded within: of nodes of 4 GPUs, 2, 4, 6, ...
  const auto in_groups =
      FewestGpus(planner, OnGpus(model, RoomyFor(bytes_at({"actor.shard_size=4"})), {"actor.shard_size=8"}));
  ASSERT_TRUE(in_groups.ok()) << in_groups.status();
  EXPECT_EQ(in_groups->config.cluster().num_nodes(), 2);
  EXPECT_EQ(in_groups->plan.devices[0].count, 8);

  const std::vector<std::string> by_tokens = {"rollout.rollout_batch_size=32", "actor.max_tokens_per_micro_batch=1536"};
  auto largest =
      LargestMicroBatch(planner, OnGpus(model, RoomyFor(bytes_at(by_tokens)), {"rollout.rollout_batch_size=32"}));
  ASSERT_TRUE(largest.ok()) << largest.status();
  EXPECT_THAT(largest->overrides, Contains("actor.max_tokens_per_micro_batch=1536"));

  std::vector<std::string> counting = {"rollout.rollout_batch_size=32", "actor.max_tokens_per_micro_batch=0",
                                       "actor.micro_train_batch_size=3"};
  const int64_t with_three = bytes_at(counting);
  counting.back() = "actor.micro_train_batch_size=1";
  largest = LargestMicroBatch(planner, OnGpus(model, RoomyFor(with_three), counting));
  ASSERT_TRUE(largest.ok()) << largest.status();
  EXPECT_THAT(largest->overrides, Contains("actor.micro_train_batch_size=3"));
}

TEST(PlanSearch, WhereFullMicroBatchesOfBothTrainersDoNotFitItNamesTheFullestThatDo) {
  const std::string model = NewModel();
  Planner planner({"policy_trainer", "critic_trainer"}, {});
  const auto filled = [&](int64_t gpu_bytes, int tokens) {
    const std::string budget = ".max_tokens_per_micro_batch=" + std::to_string(tokens);
    return OnGpus(model, gpu_bytes, {"rollout.rollout_batch_size=32", "actor" + budget, "critic" + budget});
  };
  const auto smaller = planner.MakePlan(filled(int64_t{1} << 40, 1024));
  ASSERT_TRUE(smaller.ok()) << smaller.status();
  const RunConfig config = filled(RoomyFor(smaller->devices[0].bytes), 4096);
  const auto plan = planner.MakePlan(config);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_FALSE(plan->fits());
  const auto suggestions = Suggest(planner, config, *plan);
  ASSERT_TRUE(suggestions.ok()) << suggestions.status();
  EXPECT_THAT(PrintSuggestions(*suggestions), HasSubstr("  actor.max_tokens_per_micro_batch=1024 "
                                                        "critic.max_tokens_per_micro_batch=1024  ("));
}

TEST(PlanSearch, OffersTheFewestOfEachGpuToARunWithoutACluster) {
  const std::string model = NewModel();
  const RunConfig config = Config(model, {});
  const int64_t with_four =
      Planner({"policy_trainer"}, {}).MakePlan(OnGpus(model, int64_t{1} << 40, {}))->devices[0].bytes;
  // On the smallest GPU there is just room for one of four ranks.
  const auto& smallest = *std::min_element(KnownGpus().begin(), KnownGpus().end(),
                                           [](const Gpu& a, const Gpu& b) { return a.memory_bytes < b.memory_bytes; });
  OutsideTensors outside;
  outside.cuda_context = 19 * smallest.memory_bytes / 20 - with_four;
  Planner planner({"policy_trainer"}, outside);
  const auto offers = WhatToRent(planner, config);
  ASSERT_TRUE(offers.ok()) << offers.status();
  ASSERT_EQ(offers->size(), KnownGpus().size());
  for (const Suggestion& offer : *offers) {
    EXPECT_EQ(offer.plan.devices[0].count, offer.config.cluster().gpu() == smallest.name ? 4 : 1);
    EXPECT_EQ(offer.plan.excess(), 0);
    const auto again = PlanWith(planner, config, offer.overrides);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->plan.devices[0].bytes, offer.plan.devices[0].bytes);
    EXPECT_THAT(PrintOffers(*offers), HasSubstr(offer.config.cluster().gpu()));
  }
  EXPECT_EQ(offers->back().config.cluster().gpu(), smallest.name) << "fewest first";

  outside.cuda_context = smallest.memory_bytes;
  Planner larger({"policy_trainer"}, outside);
  EXPECT_EQ(WhatToRent(larger, config)->size(), KnownGpus().size() - 1) << "it fits on no number of the smallest";
}

TEST(PlanSearch, ACacheThatIsSmallForItsRunIsShownTheOptionThatIsEnough) {
  const std::string model = NewModel();
  // 512 tokens a sequence, and 64 sequences for each of 4 ranks.
  const auto with = [&](const std::vector<std::string>& overrides, int64_t gpu) {
    std::vector<std::string> all = {"rollout.rollout_batch_size=256", "rollout.max_num_seqs=48"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    auto made = Planner({"rollout"}, {}).MakePlan(OnGpus(model, gpu, all));
    EXPECT_TRUE(made.ok()) << made.status();
    return std::pair(OnGpus(model, gpu, all), *std::move(made));
  };
  const auto [config, plan] = with({}, int64_t{1} << 40);
  const CacheUse use = CacheUseOf(config, plan.services[0]);
  EXPECT_EQ(use.tokens, 512);
  EXPECT_EQ(use.could_run, 48);
  ASSERT_LT(use.held, 48);
  const auto larger = FindLargerCache(config, plan);
  ASSERT_TRUE(larger.has_value());
  EXPECT_EQ(larger->held, 48);
  EXPECT_THAT(PrintPlan(config, plan), HasSubstr("--set=" + larger->override_text + " would hold all of them\n"));
  const auto [raised_config, raised] = with({larger->override_text}, int64_t{1} << 40);
  EXPECT_EQ(CacheUseOf(raised_config, raised.services[0]).held, 48);
  EXPECT_FALSE(FindLargerCache(raised_config, raised).has_value());
  EXPECT_THAT(PrintPlan(raised_config, raised), Not(HasSubstr("--set=")));

  // Room for half of what is missing, and for nothing.
  const int64_t missing = raised.devices[0].bytes - plan.devices[0].bytes;
  const auto [tight_config, tight] = with({}, RoomyFor(plan.devices[0].bytes + missing / 2));
  const auto some = FindLargerCache(tight_config, tight);
  ASSERT_TRUE(some.has_value());
  EXPECT_GT(some->held, use.held);
  EXPECT_LT(some->held, 48);
  const auto [filled_config, filled] = with({some->override_text}, RoomyFor(plan.devices[0].bytes + missing / 2));
  EXPECT_EQ(filled.devices[0].excess(), 0);
  EXPECT_EQ(CacheUseOf(filled_config, filled.services[0]).held, some->held);
  const auto [full_config, full] = with({}, RoomyFor(plan.devices[0].bytes));
  EXPECT_FALSE(FindLargerCache(full_config, full).has_value());
  EXPECT_THAT(PrintPlan(full_config, full), HasSubstr("there is no room for more"));
}

}  // namespace
}  // namespace quartet
