// Whose turn it is.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "rollout/engine/scheduling/scheduler.h"
#include "rollout/engine/scheduling/testing/scheduler_player.h"

namespace quartet {
namespace {

TEST(SchedulerFairness, HalfOfThePlacesAreTheOldestCallsAndTheOthersSharedEvenly) {
  SchedulerOptions options = SmallOptions();
  options.num_blocks = 200;
  Player player(options, 12);
  for (int32_t i = 0; i < 20; ++i) player.Add(PromptOf(3, i), 1, /*call=*/1);
  player.Step();
  EXPECT_EQ(player.shares().at(1), 8);
  for (int32_t i = 0; i < 4; ++i) player.Add(PromptOf(3, 20 + i), 2, /*call=*/2);
  for (int32_t i = 0; i < 2; ++i) player.Add(PromptOf(3, 24 + i), 1, /*call=*/3);
  // Of the places that become free half go to the oldest call, the others to those that have fewest.
  for (int step = 0; step < 12; ++step) player.Step();
  EXPECT_EQ(player.shares().at(1), 4);
  EXPECT_EQ(player.shares().at(2), 2);
  EXPECT_EQ(player.shares().at(3), 2);
  player.PlayToTheEnd();
  EXPECT_EQ(player.finished().size(), 30u);
}

// However long the answers of each are: what counts is who has the places.
TEST(SchedulerFairness, CallsOfLongAnswersLeaveThoseOfShortOnesTheirPlaces) {
  SchedulerOptions options = SmallOptions();
  options.num_blocks = 400;
  options.max_model_len = 200;
  Player player(options, 5);
  player.SetNewTokens(1, 100);
  for (int32_t i = 0; i < 40; ++i) player.Add(PromptOf(3, i), 1, /*call=*/1);
  player.Step();
  for (int32_t i = 0; i < 300; ++i) player.Add(PromptOf(3, 40 + i), 1, /*call=*/2);
  std::map<uint64_t, int> held;
  for (int step = 0; step < 450; ++step) {
    ASSERT_NO_FATAL_FAILURE(player.Step());
    if (step < 150) continue;  // the first call's first answers
    for (const auto& [call, sequences] : player.shares()) held[call] += sequences;
  }
  ASSERT_GT(player.left(2), 0);
  EXPECT_NEAR(held.at(1), held.at(2), 300);  // of 8 * 300
}

// Newer calls of one prompt come without end, more than there are places for.
TEST(SchedulerFairness, ACallEndsInBoundedTimeWhateverComesAfterIt) {
  constexpr int64_t kPrompts = 40, kNewTokens = 12;
  for (const int64_t places : {1, 2, 3, 8}) {
    SCOPED_TRACE(places);
    for (const int64_t new_tokens_of_others : {1, 12, 30}) {
      SCOPED_TRACE(new_tokens_of_others);
      SchedulerOptions options = SmallOptions();
      options.num_blocks = 400;
      options.max_num_seqs = places;
      Player player(options, new_tokens_of_others);
      player.SetNewTokens(1, kNewTokens);
      for (int32_t i = 0; i < kPrompts; ++i) player.Add(PromptOf(3, i), 1, /*call=*/1);
      player.Step();
      // What half of the batch takes, and until the first one's turn comes.
      const int64_t most = 2 * kPrompts * kNewTokens / places + 2 * 30;
      uint64_t call = 1;
      for (int64_t step = 0; player.left(1) > 0; ++step) {
        ASSERT_LE(step, most);
        for (int64_t i = 0; i < places; ++i) {
          ++call;
          player.Add(PromptOf(3, static_cast<int32_t>(call)), 1, call);
        }
        ASSERT_NO_FATAL_FAILURE(player.Step());
      }
    }
  }
}

// Small calls fill the line whenever there is room in it, and again and again one or two calls of many sequences come
// between them. What is promised of half of the batch holds of every call: until the last of its sequences runs, it
// waits no longer than that half takes for what waited when it came, and for the call itself.
TEST(SchedulerFairness, NoCallWaitsLongerThanHalfOfTheBatchTakesForWhatWasThereBefore) {
  constexpr int64_t kSteps = 20'000, kLine = 60, kLongest = 16, kPromptLen = 3;
  // Beyond that: what has the half when the call comes; what gets places in it while the samples of a call's last
  // prompt wait for that (the call's own, and an older one's); and what an odd number of places has it behind.
  constexpr int64_t kSlack = 4 * kLongest;
  for (const int64_t places : {1, 2, 3, 8, 16}) {
    SCOPED_TRACE(places);
    SchedulerOptions options = SmallOptions();
    options.num_blocks = 400;
    options.max_num_seqs = places;
    options.max_num_batched_tokens = places * kPromptLen;
    Scheduler scheduler(options);
    std::mt19937 random(5);
    struct Call {
      bool large = false;
      int64_t came = 0;  // step
      int64_t most = 0;  // steps that a sequence of it may wait
      int64_t left = 0;
      int64_t new_tokens = 0;  // of each sequence, and the steps that it runs
    };
    std::map<uint64_t, Call> calls;
    std::set<std::pair<uint64_t, int32_t>> started;
    int64_t waiting_steps = 0;  // that the sequences that wait will run
    uint64_t last_call = 0;
    uint64_t last_prompt = 0;
    int64_t small_waiting = 0, large_left = 0, large_calls = 0, longest_wait = 0;

    const auto add = [&](bool large, int64_t step, int64_t prompts, int32_t samples) {
      Call& call = calls[++last_call];
      call = {.large = large,
              .came = step,
              .left = prompts * samples,
              .new_tokens = 1 + static_cast<int64_t>(random() % kLongest)};
      waiting_steps += call.left * call.new_tokens;
      call.most = 2 * waiting_steps / places + kSlack;
      (large ? large_left : small_waiting) += call.left;
      for (int64_t i = 0; i < prompts; ++i) {
        ++last_prompt;
        scheduler.Add(last_call, last_prompt, PromptOf(kPromptLen, static_cast<int32_t>(last_prompt)), 0, samples);
      }
    };
    for (int64_t step = 0; step < kSteps; ++step) {
      if (large_left == 0 && random() % 32 == 0) {
        for (uint64_t i = 0; i <= random() % 2; ++i) {
          const int32_t samples = random() % 2 == 0 ? 1 : 4;
          add(/*large=*/true, step, 20 * places / samples, samples);
          ++large_calls;
        }
      }
      while (small_waiting < kLine) add(/*large=*/false, step, 1 + static_cast<int64_t>(random() % 3), 1);

      const ScheduledStep scheduled = scheduler.Schedule();
      ASSERT_EQ(static_cast<int64_t>(scheduled.chunks.size()), places);
      for (const ScheduledChunk& chunk : scheduled.chunks) {
        const Call& call = calls.at(chunk.sequence->call);
        if (!started.insert({chunk.sequence->prompt_index, chunk.sequence->sample}).second) continue;
        waiting_steps -= call.new_tokens;
        if (!call.large) --small_waiting;
        ASSERT_LE(step - call.came, call.most) << (call.large ? "large" : "small") << " call, step " << step;
        longest_wait = std::max(longest_wait, step - call.came);
      }
      std::vector<Sequence*> draws;
      for (const FirstDraws& first : scheduled.first_draws) {
        draws.insert(draws.end(), first.sequences.begin(), first.sequences.end());
      }
      for (const ScheduledChunk& chunk : scheduled.chunks) {
        const std::vector<Sequence*> drawn = scheduler.Computed(chunk, [] { return std::make_shared<const int>(); });
        draws.insert(draws.end(), drawn.begin(), drawn.end());
      }
      for (Sequence* sequence : draws) {
        sequence->ids.push_back(1);
        const auto call = calls.find(sequence->call);
        if (static_cast<int64_t>(sequence->ids.size()) < kPromptLen + call->second.new_tokens) continue;
        // A sample of which its prompt's logits give the only token ends without having run.
        if (started.insert({sequence->prompt_index, sequence->sample}).second) {
          waiting_steps -= call->second.new_tokens;
        }
        if (call->second.large) --large_left;
        if (--call->second.left == 0) calls.erase(call);
        scheduler.Finish(sequence);
      }
    }
    EXPECT_EQ(scheduler.preemptions(), 0);
    EXPECT_GT(large_calls, 10);
    EXPECT_GT(longest_wait, 10 * kLongest);
  }
}

TEST(SchedulerFairness, ACallOfOnePromptDoesNotWaitBehindAllPromptsOfAnother) {
  for (const int64_t places : {1, 2, 8}) {
    SCOPED_TRACE(places);
    SchedulerOptions options = SmallOptions();
    options.max_num_seqs = places;
    Player player(options, 10);
    for (int32_t i = 0; i < 512; ++i) player.Add(PromptOf(3, i), 1, /*call=*/1);
    for (int step = 0; step < 25; ++step) player.Step();
    player.Add(PromptOf(3, 600), 1, /*call=*/2);
    // One that runs, at most one that comes in turn, and its own.
    for (int step = 0; player.left(2) > 0; ++step) {
      ASSERT_LE(step, 3 * 10);
      ASSERT_NO_FATAL_FAILURE(player.Step());
    }
  }
}

TEST(SchedulerFairness, NothingOvertakesALongPromptThatWaitsForBlocks) {
  SchedulerOptions options = SmallOptions();
  options.num_blocks = 26;
  options.max_num_batched_tokens = 200;
  Player player(options, 6);
  for (const uint64_t call : {1, 2}) {
    player.SetNewTokens(call, 30);
    player.Add(PromptOf(3, static_cast<int32_t>(call)), 1, call);
  }
  uint64_t call = 2;
  while (call < 5) {
    ++call;
    player.Add(PromptOf(12, static_cast<int32_t>(call)), 1, call);
  }
  player.Step();
  ASSERT_EQ(player.shares().size(), 5u);
  player.Add(PromptOf(60, 900), 1, /*call=*/1);
  while (player.shares().at(1) == 1) {
    ++call;
    player.Add(PromptOf(3, static_cast<int32_t>(call)), 1, call);
    ASSERT_NO_FATAL_FAILURE(player.Step());
    ASSERT_TRUE(player.shares().rbegin()->first <= 5 || player.shares().at(1) == 2) << "a newer call runs";
  }
}

TEST(SchedulerFairness, WhatWasSentBackIsTheNextThatRuns) {
  SchedulerOptions options = SmallOptions();
  options.num_blocks = 10;
  options.max_num_seqs = 2;
  Player player(options, 20);
  player.Add(PromptOf(7), 1, /*call=*/1);
  player.Add(PromptOf(7, 1), 1, /*call=*/3);
  for (int i = 0; player.scheduler().preemptions() == 0; ++i) {
    ASSERT_LT(i, 20);
    ASSERT_NO_FATAL_FAILURE(player.Step());
  }
  ASSERT_EQ(player.shares(), (std::map<uint64_t, int>{{1, 1}}));
  player.Add(PromptOf(1, 2), 1, /*call=*/2);  // an older call, which has had nothing
  for (int i = 0; player.shares().count(3) == 0; ++i) {
    ASSERT_LT(i, 30);
    ASSERT_NO_FATAL_FAILURE(player.Step());
    ASSERT_LE(player.shares().count(2), player.shares().count(3));
  }
  player.PlayToTheEnd();
  EXPECT_EQ(player.finished().size(), 3u);
}

}  // namespace
}  // namespace quartet
