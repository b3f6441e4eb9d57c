#include "rollout/engine/scheduling/scheduler.h"

#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "rollout/engine/scheduling/testing/scheduler_player.h"

namespace quartet {
namespace {

TEST(Scheduler, MixesChunksOfPromptsWithDecodingInOneBudget) {
  Player player(SmallOptions(), 10);
  player.Add(PromptOf(5));
  player.Step();  // the whole first prompt
  player.Add(PromptOf(70, 1));
  const ScheduledStep step = player.scheduler().Schedule();
  ASSERT_EQ(step.chunks.size(), 2u);
  EXPECT_EQ(step.chunks[0].count, 1);   // decodes
  EXPECT_EQ(step.chunks[1].count, 31);  // what is left of the budget
  EXPECT_FALSE(step.chunks[1].last);
}

TEST(Scheduler, AFinishedSequencesPlaceIsTakenInTheNextStep) {
  SchedulerOptions options = SmallOptions();
  options.max_num_seqs = 1;
  Player player(options, 1);
  for (int32_t i = 0; i < 3; ++i) player.Add(PromptOf(3, i));
  for (uint64_t i = 0; i < 3; ++i) {
    player.Step();
    ASSERT_EQ(player.finished().size(), i + 1);
    EXPECT_EQ(player.finished()[i].first, i);
  }
  EXPECT_TRUE(player.scheduler().idle());
}

TEST(Scheduler, APromptIsComputedOnceForAllItsSamples) {
  for (const int64_t length : {1, 4, 22, 24, 60}) {
    for (const int64_t places : {1, 3, 8}) {
      SchedulerOptions options = SmallOptions();
      options.max_num_seqs = places;
      Player player(options, 5);
      player.Add(PromptOf(length), 8);
      player.PlayToTheEnd();
      // Each sample computes four of its five tokens: the last one never enters the cache.
      EXPECT_EQ(player.computed_tokens(), length + 8 * 4) << length << " tokens, " << places << " places";
      EXPECT_EQ(player.copies(), length % 4 == 0 ? 0 : 7);
      EXPECT_EQ(player.finished().size(), 8u);
      EXPECT_EQ(player.scheduler().blocks_in_use(), 0);
    }
  }
}

// One call of very many samples holds nobody up for longer than a step.
TEST(Scheduler, FirstTokensOfSamplesThatWaitAreDrawnAFewAStep) {
  constexpr int32_t kSamples = 1000;
  for (const int64_t new_tokens : {1, 3}) {
    SchedulerOptions options = SmallOptions();
    options.num_blocks = 200;
    Player player(options, new_tokens);
    player.Add(PromptOf(22), kSamples, /*call=*/1);
    ASSERT_NO_FATAL_FAILURE(player.Step());
    player.Add(PromptOf(9, 1), 3, /*call=*/2);
    int64_t steps = 1, steps_of_other = 1;
    for (; !player.scheduler().idle(); ++steps) {
      ASSERT_LT(steps, 10'000);
      EXPECT_LE(player.first_draws(), options.max_num_seqs);
      steps_of_other += player.left(2) > 0 ? 1 : 0;
      ASSERT_NO_FATAL_FAILURE(player.Step());
    }
    EXPECT_EQ(player.finished().size(), kSamples + 3u);
    EXPECT_LE(steps_of_other, 2 * new_tokens + 4);
    if (new_tokens > 1) continue;
    EXPECT_EQ(player.computed_tokens(), 22 + 9) << "each prompt is computed once";
    EXPECT_GE(steps, kSamples / options.max_num_seqs);
    EXPECT_LE(steps, kSamples / options.max_num_seqs + 4);
  }
}

TEST(Scheduler, SamplesThatHaveNoFirstTokenYetBeginAnewWhenTheWeightsChange) {
  SchedulerOptions options = SmallOptions();
  options.max_num_seqs = 2;
  Player player(options, 3);
  player.Add(PromptOf(22), 9);
  player.Step();
  player.NewWeights();
  player.PlayToTheEnd();
  EXPECT_EQ(player.finished().size(), 9u);
  // Three began under the old weights: the prompt, for their second and third tokens of two of them again, once for
  // all.
  EXPECT_GE(player.computed_tokens(), 22 + 22 + 9 * 2);
  EXPECT_LE(player.computed_tokens(), 22 + 2 * 22 + 9 * 2);
}

TEST(Scheduler, SamplesOfOnePromptShareItsTokens) {
  Scheduler scheduler(SmallOptions());
  scheduler.Add(1, 0, PromptOf(22), 0, 5);
  const std::vector<std::unique_ptr<Sequence>> all = scheduler.Cancel(1);
  ASSERT_EQ(all.size(), 5u);
  for (const auto& sequence : all) EXPECT_EQ(sequence->ids.prompt().data(), all[0]->ids.prompt().data());
}

TEST(Scheduler, APromptStartsBehindWhatEarlierCallsLeftInTheCache) {
  Player player(SmallOptions(), 3);
  player.Add(PromptOf(22));
  player.PlayToTheEnd();
  EXPECT_EQ(player.computed_tokens(), 22 + 2);
  player.Add(PromptOf(22), 1, /*call=*/2);
  player.PlayToTheEnd();
  EXPECT_EQ(player.computed_tokens(), 24 + 2 + 2);  // behind five full blocks
  std::vector<int32_t> longer = PromptOf(10);
  longer.resize(30, 7);
  player.Add(longer, 1, /*call=*/3);
  player.PlayToTheEnd();
  EXPECT_EQ(player.computed_tokens(), 28 + 22 + 2);  // behind the two blocks that are the same
  EXPECT_EQ(player.scheduler().admitted_tokens(), 22 + 22 + 30);
  EXPECT_EQ(player.scheduler().cached_tokens(), 20 + 8);
}

TEST(Scheduler, APromptThatIsToBeComputedWholeFindsNothingButItsOwn) {
  Scheduler scheduler(SmallOptions());
  const auto compute = [&](int32_t samples, bool finds_prefix) {
    int64_t tokens = 0;
    scheduler.Add(1, 0, PromptOf(22), 0, samples, finds_prefix);
    while (!scheduler.idle()) {
      for (const ScheduledChunk& chunk : scheduler.Schedule().chunks) {
        tokens += chunk.count;
        for (Sequence* sequence : scheduler.Computed(chunk, [] { return KeptRow(); })) scheduler.Finish(sequence);
      }
    }
    return tokens;
  };
  EXPECT_EQ(compute(1, true), 22);
  EXPECT_EQ(compute(1, false), 22);
  EXPECT_EQ(compute(4, false), 22);  // its samples share it
  EXPECT_EQ(compute(1, true), 2);
}

TEST(Scheduler, NothingIsFoundThatOtherWeightsComputed) {
  Player player(SmallOptions(), 6);
  player.Add(PromptOf(22));
  player.Step();
  player.NewWeights();
  player.Add(PromptOf(22), 2, /*call=*/2);
  player.PlayToTheEnd();
  // The first one went on with what it had, and the second call computed the prompt again.
  EXPECT_EQ(player.computed_tokens(), 22 + 5 + 22 + 2 * 5);
  // What the first one computed under both weights is not found either.
  player.NewWeights();
  player.Add(PromptOf(22), 1, /*call=*/3);
  player.PlayToTheEnd();
  EXPECT_EQ(player.computed_tokens(), 59 + 22 + 5);
}

// The weights change when the first sample has computed a part of the prompt for all.
TEST(Scheduler, APromptThatIsComputedInPartWhenTheWeightsChangeBeginsAnew) {
  SchedulerOptions options = SmallOptions();
  options.max_num_batched_tokens = 8;
  Player player(options, 6);
  player.Add(PromptOf(22), 3);
  player.Step();
  player.NewWeights();
  player.PlayToTheEnd();
  EXPECT_EQ(player.computed_tokens(), 8 + 22 + 3 * 5);
  // So does one that was sent back with a part of its answer.
  player.Add(PromptOf(22), 2, /*call=*/2);
  for (int step = 0; step < 5; ++step) player.Step();
  player.scheduler().PreemptAll();
  player.Step();
  player.NewWeights();
  player.PlayToTheEnd();
  // All of that is of the new weights alone, and found.
  const int64_t computed = player.computed_tokens();
  player.Add(PromptOf(22), 1, /*call=*/3);
  player.PlayToTheEnd();
  EXPECT_EQ(player.computed_tokens() - computed, 2 + 5);
}

TEST(Scheduler, ACancelledCallsBlocksAreFreeAtOnce) {
  Player player(SmallOptions(), 9);
  player.Add(PromptOf(21), 3, /*call=*/1);
  player.Add(PromptOf(13, 1), 2, /*call=*/2);
  player.Add(PromptOf(60, 2), 4, /*call=*/1);  // waits
  player.Step();
  player.Step();
  EXPECT_EQ(player.Cancel(1), 7);
  EXPECT_EQ(player.Cancel(1), 0);
  player.Step();
  EXPECT_LE(player.scheduler().blocks_in_use(), 2 * 4 + 4);
  player.PlayToTheEnd();
  EXPECT_EQ(player.finished(), (std::vector<std::pair<uint64_t, int32_t>>{{1, 0}, {1, 1}}));
  EXPECT_EQ(player.scheduler().blocks_in_use(), 0);
}

TEST(Scheduler, CountsPlacesThatHoldNoToken) {
  SchedulerOptions options = SmallOptions();
  options.block_size = 8;
  options.num_blocks = 100;
  options.max_num_batched_tokens = 64;
  options.max_num_seqs = 2;
  Player player(options, 4);
  EXPECT_EQ(player.scheduler().empty_places(), 0);
  player.Add(PromptOf(21), 3);
  player.Step();  // 21 tokens in three blocks
  EXPECT_EQ(player.scheduler().blocks_in_use(), 3);
  EXPECT_EQ(player.scheduler().empty_places(), 3);
  player.Step();  // 22 tokens of two samples, which share two blocks; the third one waits
  EXPECT_EQ(player.scheduler().blocks_in_use(), 4);
  EXPECT_EQ(player.scheduler().empty_places(), 4);
  player.Step();
  EXPECT_EQ(player.scheduler().empty_places(), 2);
  player.Step();  // both end; the prompt stays for the third one
  EXPECT_EQ(player.scheduler().running(), 0);
  EXPECT_EQ(player.scheduler().blocks_in_use(), 3);
  EXPECT_EQ(player.scheduler().empty_places(), 3);
  player.PlayToTheEnd();
  EXPECT_EQ(player.scheduler().empty_places(), 0);
}

TEST(Scheduler, GivesAllBlocksBackAndComputesEverythingAgain) {
  Player player(SmallOptions(), 9);
  player.Add(PromptOf(21), 3);
  player.Add(PromptOf(13, 1), 2);
  player.Step();
  player.Step();
  player.scheduler().PreemptAll();
  EXPECT_EQ(player.scheduler().blocks_in_use(), 0);
  EXPECT_EQ(player.scheduler().running(), 0);
  const int64_t computed = player.computed_tokens();
  player.PlayToTheEnd();
  EXPECT_EQ(player.finished().size(), 5u);
  // The prompts at least.
  EXPECT_GE(player.computed_tokens() - computed, 21 + 13);
}

TEST(Scheduler, PreemptsWhenBlocksRunOutAndStillFinishesEverything) {
  SchedulerOptions options = SmallOptions();
  options.num_blocks = 10;
  Player player(options, 20);
  for (int32_t i = 0; i < 6; ++i) player.Add(PromptOf(7 + i, i), 2);
  player.PlayToTheEnd();
  EXPECT_GT(player.scheduler().preemptions(), 0);
  EXPECT_EQ(player.finished().size(), 12u);
  EXPECT_EQ(std::set(player.finished().begin(), player.finished().end()).size(), 12u);
  EXPECT_EQ(player.scheduler().blocks_in_use(), 0);
}

// Calls come, go and end while weights change, in caches of any size: nothing is lost, mixed up or kept for ever.
TEST(Scheduler, KeepsItsPromisesInThousandsOfRandomSteps) {
  std::mt19937 random(11);
  int64_t preemptions = 0;
  int64_t cached = 0;
  for (int trial = 0; trial < 400; ++trial) {
    SCOPED_TRACE(trial);
    const uint64_t updates = trial % 2 == 0 ? 1 : 5;  // of 20 moves
    SchedulerOptions options;
    options.block_size = 1 + random() % 5;
    options.num_blocks = 6 + random() % 30;
    options.max_num_seqs = 1 + random() % 6;
    options.max_num_batched_tokens = 1 + random() % 40;
    options.max_model_len = 60;
    const int64_t new_tokens = 1 + random() % 15;
    Player player(options, new_tokens);
    size_t expected = 0;
    uint64_t call = 0;
    for (int step = 0; step < 150; ++step) {
      const auto dice = random() % 20;
      if (dice < 3) {
        ++call;
        for (uint64_t prompts = 1 + random() % 3; prompts > 0; --prompts) {
          // Few different prompts of many lengths: prefixes are met again.
          const std::vector<int32_t> prompt = PromptOf(1 + random() % 30, static_cast<int32_t>(random() % 3));
          if (!player.scheduler().CheckFits(static_cast<int64_t>(prompt.size()), new_tokens).ok()) continue;
          const auto samples = static_cast<int32_t>(1 + random() % (random() % 8 == 0 ? 30 : 4));
          player.Add(prompt, samples, call);
          expected += samples;
        }
      } else if (dice == 3 && call > 0) {
        expected -= player.Cancel(1 + random() % call);
      } else if (dice == 4 && random() % 3 == 0) {
        player.scheduler().PreemptAll();
      } else if (dice >= 5 && dice < 5 + updates) {
        player.NewWeights();
      } else if (!player.scheduler().idle()) {
        ASSERT_NO_FATAL_FAILURE(player.Step());
      }
    }
    ASSERT_NO_FATAL_FAILURE(player.PlayToTheEnd());
    ASSERT_EQ(player.finished().size(), expected);
    ASSERT_EQ(player.scheduler().blocks_in_use(), 0);
    ASSERT_EQ(player.scheduler().waiting(), 0);
    preemptions += player.scheduler().preemptions();
    cached += player.scheduler().cached_tokens();
  }
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(cached, 1000);
}

TEST(Scheduler, RefusesWhatCanNeverFit) {
  SchedulerOptions options = SmallOptions();
  options.num_blocks = 5;
  const Scheduler scheduler(options);
  EXPECT_TRUE(scheduler.CheckFits(11, 10).ok());
  const absl::Status too_big = scheduler.CheckFits(12, 10);
  EXPECT_EQ(too_big.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(too_big.message().find("kv_cache_bytes"), too_big.message().npos) << too_big;
  const absl::Status too_long = scheduler.CheckFits(91, 10);
  EXPECT_EQ(too_long.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(too_long.message().find("max_model_len = 100"), too_long.message().npos) << too_long;
  EXPECT_EQ(scheduler.CheckFits(0, 1).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace quartet
