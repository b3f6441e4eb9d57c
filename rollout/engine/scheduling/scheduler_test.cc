#include "rollout/engine/scheduling/scheduler.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "gtest/gtest.h"

namespace quartet {
namespace {

constexpr uint64_t kCall = 1;

// Tokens that no other prompt has.
std::vector<int32_t> PromptOf(int64_t length, int32_t name = 0) {
  std::vector<int32_t> ids(length);
  for (int64_t i = 0; i < length; ++i) ids[i] = static_cast<int32_t>(1000 * (name + 1) + i);
  return ids;
}

// Plays the engine: computes every chunk, remembers which token of which history each place of the cache holds and by
// which weights all was computed that it depends on, and checks that a sequence finds exactly its own there: nothing
// that weights computed which were replaced before the sequence was admitted. A first token is drawn from what one
// version computed. Sequences end after `new_tokens`, where their call has no other number.
class Player {
 public:
  Player(const SchedulerOptions& options, int64_t new_tokens)
      : options_(options), scheduler_(options), new_tokens_(new_tokens) {}

  Scheduler& scheduler() { return scheduler_; }
  int64_t computed_tokens() const { return computed_tokens_; }
  int64_t copies() const { return copies_; }
  const std::vector<std::pair<uint64_t, int32_t>>& finished() const { return finished_; }
  // Sequences of each call that the last step computed.
  const std::map<uint64_t, int>& shares() const { return shares_; }

  void SetNewTokens(uint64_t call, int64_t new_tokens) { new_tokens_of_[call] = new_tokens; }

  // Sequences of the call that have not ended.
  int64_t left(uint64_t call) const {
    const auto found = left_.find(call);
    return found == left_.end() ? 0 : found->second;
  }

  void Add(const std::vector<int32_t>& prompt, int32_t samples = 1, uint64_t call = kCall) {
    scheduler_.Add(call, next_prompt_++, prompt, 0, samples);
    left_[call] += samples;
  }

  void Step() {
    ForgetThoseSentBack();
    const ScheduledStep step = scheduler_.Schedule();
    ForgetThoseSentBack();
    ASSERT_FALSE(step.chunks.empty());
    ASSERT_LE(static_cast<int64_t>(step.chunks.size()), options_.max_num_seqs);
    for (const BlockCopy& copy : step.copies) {
      ASSERT_NE(copy.from, copy.to);
      for (int64_t i = 0; i < options_.block_size; ++i) cache_[{copy.to, i}] = cache_[{copy.from, i}];
      ++copies_;
    }
    shares_.clear();
    int64_t tokens = 0;
    for (const ScheduledChunk& chunk : step.chunks) {
      ASSERT_GT(chunk.count, 0);
      ASSERT_EQ(chunk.last, chunk.first + chunk.count == static_cast<int64_t>(chunk.sequence->ids.size()));
      tokens += chunk.count;
      ++shares_[chunk.sequence->call];
      int64_t oldest = OldestWeights(*chunk.sequence, chunk.first);
      for (int64_t t = chunk.first; t < chunk.first + chunk.count; ++t) {
        oldest = std::min(oldest, weights_);
        cache_[Place(*chunk.sequence, t)] = {.ids = History(*chunk.sequence, t), .oldest_weights = oldest};
      }
    }
    // All writes of a step come before its reads.
    for (const ScheduledChunk& chunk : step.chunks) {
      const Sequence& sequence = *chunk.sequence;
      for (int64_t t = 0; t < chunk.first + chunk.count; ++t) {
        const auto held = cache_.find(Place(sequence, t));
        ASSERT_TRUE(held != cache_.end() && held->second.ids == History(sequence, t)) << "token " << t;
      }
      const int64_t oldest = OldestWeights(sequence, chunk.first + chunk.count);
      const int64_t admitted_under = admitted_under_.try_emplace(&sequence, weights_).first->second;
      ASSERT_GE(oldest, admitted_under) << "keys and values of others, computed by weights that are gone";
      if (chunk.last && static_cast<int64_t>(sequence.ids.size()) == sequence.prompt_len) {
        ASSERT_EQ(oldest, weights_) << "a first token from keys and values of two versions";
      }
    }
    ASSERT_LE(tokens, options_.max_num_batched_tokens);
    computed_tokens_ += tokens;
    std::vector<Sequence*> draws;
    for (const ScheduledChunk& chunk : step.chunks) {
      const std::vector<Sequence*> drawn = scheduler_.Computed(chunk);
      ASSERT_EQ(chunk.last, !drawn.empty());
      draws.insert(draws.end(), drawn.begin(), drawn.end());
    }
    CheckEmptyPlaces(step);
    ASSERT_EQ(std::set(draws.begin(), draws.end()).size(), draws.size()) << "a token is drawn twice";
    for (Sequence* sequence : draws) {
      sequence->ids.push_back(sequence->sample + 2);
      const auto own = new_tokens_of_.find(sequence->call);
      const int64_t new_tokens = own == new_tokens_of_.end() ? new_tokens_ : own->second;
      if (static_cast<int64_t>(sequence->ids.size()) < sequence->prompt_len + new_tokens) continue;
      --left_[sequence->call];
      admitted_under_.erase(sequence);
      const auto ended = scheduler_.Finish(sequence);
      finished_.emplace_back(ended->prompt_index, ended->sample);
    }
    ASSERT_LE(scheduler_.blocks_in_use(), options_.num_blocks);
  }

  void PlayToTheEnd() {
    for (int step = 0; !scheduler_.idle(); ++step) {
      ASSERT_LT(step, 100000) << "no end";
      ASSERT_NO_FATAL_FAILURE(Step());
    }
  }

  // How many sequences of the call were left.
  int64_t Cancel(uint64_t call) {
    const auto cancelled = scheduler_.Cancel(call);
    EXPECT_EQ(static_cast<int64_t>(cancelled.size()), left_[call]);
    for (const auto& sequence : cancelled) admitted_under_.erase(sequence.get());
    return std::exchange(left_[call], 0);
  }

  void NewWeights() {
    ++weights_;
    scheduler_.FlushPrefixes();
  }

 private:
  // Place by place, where nobody but the sequences of `step` holds blocks.
  void CheckEmptyPlaces(const ScheduledStep& step) const {
    std::set<int32_t> blocks;
    std::set<std::pair<int32_t, int64_t>> held;
    for (const ScheduledChunk& chunk : step.chunks) {
      blocks.insert(chunk.sequence->blocks.begin(), chunk.sequence->blocks.end());
      for (int64_t t = 0; t < chunk.first + chunk.count; ++t) held.insert(Place(*chunk.sequence, t));
    }
    if (static_cast<int64_t>(blocks.size()) != scheduler_.blocks_in_use()) return;
    EXPECT_EQ(scheduler_.empty_places(),
              static_cast<int64_t>(blocks.size()) * options_.block_size - static_cast<int64_t>(held.size()));
  }

  // What the keys and values at a place depend on.
  struct Held {
    std::vector<int32_t> ids;    // up to and with their own
    int64_t oldest_weights = 0;  // that computed them, or anything that they attended to
  };
  static std::vector<int32_t> History(const Sequence& s, int64_t t) { return {s.ids.begin(), s.ids.begin() + t + 1}; }
  // That a token attends to which stands behind the first `tokens` ones.
  int64_t OldestWeights(const Sequence& s, int64_t tokens) const {
    int64_t oldest = weights_;
    for (int64_t t = 0; t < tokens; ++t) oldest = std::min(oldest, cache_.at(Place(s, t)).oldest_weights);
    return oldest;
  }
  // A sequence that was sent back holds nothing, and will be admitted anew.
  void ForgetThoseSentBack() {
    std::erase_if(admitted_under_, [](const auto& entry) { return entry.first->blocks.empty(); });
  }
  std::pair<int32_t, int64_t> Place(const Sequence& s, int64_t t) const {
    return {s.blocks.at(t / options_.block_size), t % options_.block_size};
  }

  SchedulerOptions options_;
  Scheduler scheduler_;
  int64_t new_tokens_;
  std::map<uint64_t, int64_t> new_tokens_of_;  // by call
  uint64_t next_prompt_ = 0;
  int64_t weights_ = 0;
  int64_t computed_tokens_ = 0;
  int64_t copies_ = 0;
  std::vector<std::pair<uint64_t, int32_t>> finished_;
  std::map<uint64_t, int64_t> left_;
  std::map<const Sequence*, int64_t> admitted_under_;  // weights, of those that run
  std::map<uint64_t, int> shares_;
  std::map<std::pair<int32_t, int64_t>, Held> cache_;
};

SchedulerOptions SmallOptions() {
  SchedulerOptions options;
  options.num_blocks = 64;
  options.block_size = 4;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 32;
  options.max_model_len = 100;
  return options;
}

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
        for (Sequence* sequence : scheduler.Computed(chunk)) scheduler.Finish(sequence);
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

TEST(Scheduler, HalfOfThePlacesAreTheOldestCallsAndTheOthersSharedEvenly) {
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
TEST(Scheduler, CallsOfLongAnswersLeaveThoseOfShortOnesTheirPlaces) {
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
TEST(Scheduler, ACallEndsInBoundedTimeWhateverComesAfterIt) {
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
TEST(Scheduler, NoCallWaitsLongerThanHalfOfTheBatchTakesForWhatWasThereBefore) {
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
      for (const ScheduledChunk& chunk : scheduled.chunks) {
        for (Sequence* sequence : scheduler.Computed(chunk)) {
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
    }
    EXPECT_EQ(scheduler.preemptions(), 0);
    EXPECT_GT(large_calls, 10);
    EXPECT_GT(longest_wait, 10 * kLongest);
  }
}

TEST(Scheduler, ACallOfOnePromptDoesNotWaitBehindAllPromptsOfAnother) {
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

TEST(Scheduler, NothingOvertakesALongPromptThatWaitsForBlocks) {
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

TEST(Scheduler, WhatWasSentBackIsTheNextThatRuns) {
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
          const auto samples = static_cast<int32_t>(1 + random() % 4);
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
  EXPECT_EQ(too_big.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(too_big.message().find("kv_cache_bytes"), too_big.message().npos) << too_big;
  const absl::Status too_long = scheduler.CheckFits(91, 10);
  EXPECT_EQ(too_long.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(too_long.message().find("max_model_len = 100"), too_long.message().npos) << too_long;
  EXPECT_EQ(scheduler.CheckFits(0, 1).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace quartet
