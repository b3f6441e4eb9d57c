#include "rollout/scheduler.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "gtest/gtest.h"

namespace quartet {
namespace {

std::vector<int32_t> PromptOf(int64_t length) { return std::vector<int32_t>(length, 1); }

// Plays the engine: computes every chunk, remembers which token each place of the cache holds, and checks on the way
// that a sequence finds its own tokens in its blocks. Sequences end after `new_tokens`.
class Player {
 public:
  Player(const SchedulerOptions& options, int64_t new_tokens)
      : options_(options), scheduler_(options), new_tokens_(new_tokens) {}

  Scheduler& scheduler() { return scheduler_; }
  int64_t computed_tokens() const { return computed_tokens_; }
  int64_t most_running() const { return most_running_; }
  const std::vector<std::pair<uint64_t, int32_t>>& finished() const { return finished_; }

  void Step() {
    const std::vector<ScheduledChunk> chunks = scheduler_.Schedule();
    ASSERT_FALSE(chunks.empty());
    ASSERT_LE(static_cast<int64_t>(chunks.size()), options_.max_num_seqs);
    most_running_ = std::max<int64_t>(most_running_, chunks.size());
    int64_t tokens = 0;
    for (const ScheduledChunk& chunk : chunks) {
      ASSERT_GT(chunk.count, 0);
      ASSERT_EQ(chunk.last, chunk.first + chunk.count == static_cast<int64_t>(chunk.sequence->ids.size()));
      tokens += chunk.count;
      for (int64_t t = chunk.first; t < chunk.first + chunk.count; ++t)
        cache_[Place(*chunk.sequence, t)] = Mark(*chunk.sequence, t);
    }
    // All writes of a step come before its reads.
    for (const ScheduledChunk& chunk : chunks) {
      for (int64_t t = 0; t < chunk.first + chunk.count; ++t) {
        ASSERT_EQ(cache_[Place(*chunk.sequence, t)], Mark(*chunk.sequence, t)) << "token " << t;
      }
    }
    ASSERT_LE(tokens, options_.max_num_batched_tokens);
    computed_tokens_ += tokens;
    for (const ScheduledChunk& chunk : chunks) scheduler_.Computed(chunk);
    for (const ScheduledChunk& chunk : chunks) {
      if (!chunk.last) continue;
      chunk.sequence->ids.push_back(chunk.sequence->sample + 2);
      if (static_cast<int64_t>(chunk.sequence->ids.size()) == chunk.sequence->prompt_len + new_tokens_) {
        const auto sequence = scheduler_.Finish(chunk.sequence);
        finished_.emplace_back(sequence->prompt_index, sequence->sample);
      }
    }
  }

  void PlayToTheEnd() {
    for (int step = 0; !scheduler_.idle(); ++step) {
      ASSERT_LT(step, 100000) << "no end";
      ASSERT_NO_FATAL_FAILURE(Step());
    }
  }

 private:
  // Tokens of the prompt are the same in all its samples; those generated are not.
  struct Token {
    uint64_t prompt;
    int64_t position;
    int32_t sample;
    bool operator==(const Token&) const = default;
  };
  Token Mark(const Sequence& s, int64_t t) const { return {s.prompt_index, t, t < s.prompt_len ? -1 : s.sample}; }
  std::pair<int32_t, int64_t> Place(const Sequence& s, int64_t t) const {
    return {s.blocks.at(t / options_.block_size), t % options_.block_size};
  }

  SchedulerOptions options_;
  Scheduler scheduler_;
  int64_t new_tokens_;
  int64_t computed_tokens_ = 0;
  int64_t most_running_ = 0;
  std::vector<std::pair<uint64_t, int32_t>> finished_;
  std::map<std::pair<int32_t, int64_t>, Token> cache_;
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
  player.scheduler().Add(0, PromptOf(5), 0, 1);
  player.Step();  // the whole first prompt
  player.scheduler().Add(1, PromptOf(70), 0, 1);
  const std::vector<ScheduledChunk> chunks = player.scheduler().Schedule();
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[0].count, 1);   // decodes
  EXPECT_EQ(chunks[1].count, 31);  // what is left of the budget
  EXPECT_FALSE(chunks[1].last);
}

TEST(Scheduler, AFinishedSequencesPlaceIsTakenInTheNextStep) {
  SchedulerOptions options = SmallOptions();
  options.max_num_seqs = 1;
  Player player(options, 1);
  for (uint64_t i = 0; i < 3; ++i) player.scheduler().Add(i, PromptOf(3), 0, 1);
  for (uint64_t i = 0; i < 3; ++i) {
    player.Step();
    ASSERT_EQ(player.finished().size(), i + 1);
    EXPECT_EQ(player.finished()[i].first, i);
  }
  EXPECT_TRUE(player.scheduler().idle());
}

TEST(Scheduler, SamplesOfAPromptShareItsFullBlocks) {
  Player player(SmallOptions(), 2);
  player.scheduler().Add(0, PromptOf(22), 0, 4);
  player.PlayToTheEnd();
  // The first sample computes 22 tokens and one it generated; three others the 2 behind the 5 full blocks, and theirs.
  EXPECT_EQ(player.computed_tokens(), 23 + 3 * 3);
  EXPECT_EQ(player.scheduler().free_blocks(), 64);
}

TEST(Scheduler, PreemptsWhenBlocksRunOutAndStillFinishesEverything) {
  SchedulerOptions options = SmallOptions();
  options.num_blocks = 10;
  Player player(options, 20);
  for (uint64_t i = 0; i < 6; ++i) player.scheduler().Add(i, PromptOf(7 + i), 0, 2);
  player.PlayToTheEnd();
  EXPECT_GT(player.scheduler().preemptions(), 0);
  EXPECT_EQ(player.finished().size(), 12u);
  EXPECT_EQ(std::set(player.finished().begin(), player.finished().end()).size(), 12u);
  EXPECT_EQ(player.scheduler().free_blocks(), 10);
}

TEST(Scheduler, FinishesAnythingThatFits) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 300; ++trial) {
    SchedulerOptions options;
    options.block_size = 1 + random() % 5;
    options.num_blocks = 4 + random() % 30;
    options.max_num_seqs = 1 + random() % 6;
    options.max_num_batched_tokens = 1 + random() % 40;
    options.max_model_len = 60;
    const int64_t new_tokens = 1 + random() % 15;
    Player player(options, new_tokens);
    size_t samples = 0;
    for (uint64_t prompt = 0; prompt < 6; ++prompt) {
      const int64_t length = 1 + random() % 30;
      if (!player.scheduler().CheckFits(length, new_tokens).ok()) continue;
      const int32_t n = 1 + random() % 4;
      player.scheduler().Add(prompt, PromptOf(length), 0, n);
      samples += n;
    }
    ASSERT_NO_FATAL_FAILURE(player.PlayToTheEnd()) << "trial " << trial;
    ASSERT_EQ(player.finished().size(), samples);
    ASSERT_EQ(player.scheduler().free_blocks(), options.num_blocks);
  }
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

TEST(Scheduler, ClearGivesEverythingBack) {
  Player player(SmallOptions(), 5);
  player.scheduler().Add(0, PromptOf(20), 0, 3);
  player.Step();
  player.scheduler().Clear();
  EXPECT_TRUE(player.scheduler().idle());
  EXPECT_EQ(player.scheduler().free_blocks(), 64);
}

}  // namespace
}  // namespace quartet
