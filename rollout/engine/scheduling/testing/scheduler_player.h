// Plays the engine, to see what a scheduler does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "rollout/engine/scheduling/scheduler.h"

namespace quartet {

inline constexpr uint64_t kCall = 1;

// Tokens that no other prompt has.
inline std::vector<int32_t> PromptOf(int64_t length, int32_t name = 0) {
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
  // First tokens that the last step drew, but for those of sequences that ran.
  int64_t first_draws() const { return first_draws_; }
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
    ASSERT_FALSE(step.chunks.empty() && step.first_draws.empty());
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
    first_draws_ = 0;
    for (const FirstDraws& first : step.first_draws) {
      const auto& row = *static_cast<const Row*>(first.row.get());
      ASSERT_EQ(row.weights, weights_) << "a first token from logits of weights that are gone";
      ASSERT_FALSE(first.sequences.empty());
      for (Sequence* sequence : first.sequences) {
        ASSERT_EQ(sequence->ids.size(), static_cast<size_t>(sequence->prompt_len));
        ASSERT_EQ(sequence->prompt_index, row.prompt_index);
        draws.push_back(sequence);
        ++first_draws_;
      }
    }
    for (const ScheduledChunk& chunk : step.chunks) {
      const std::vector<Sequence*> drawn = scheduler_.Computed(chunk, [&]() -> KeptRow {
        EXPECT_TRUE(chunk.last);
        return std::make_shared<const Row>(Row{chunk.sequence->prompt_index, weights_});
      });
      ASSERT_EQ(chunk.last, !drawn.empty());
      draws.insert(draws.end(), drawn.begin(), drawn.end());
      if (chunk.last) first_draws_ += static_cast<int64_t>(drawn.size()) - 1;
    }
    ASSERT_LE(first_draws_, options_.max_num_seqs);
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
  // Logits at the end of a prompt.
  struct Row {
    uint64_t prompt_index = 0;
    int64_t weights = 0;
  };
  static std::vector<int32_t> History(const Sequence& s, int64_t t) {
    std::vector<int32_t> history;
    for (int64_t i = 0; i <= t; ++i) history.push_back(s.ids[i]);
    return history;
  }
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
  int64_t first_draws_ = 0;
  std::vector<std::pair<uint64_t, int32_t>> finished_;
  std::map<uint64_t, int64_t> left_;
  std::map<const Sequence*, int64_t> admitted_under_;  // weights, of those that run
  std::map<uint64_t, int> shares_;
  std::map<std::pair<int32_t, int64_t>, Held> cache_;
};

inline SchedulerOptions SmallOptions() {
  SchedulerOptions options;
  options.num_blocks = 64;
  options.block_size = 4;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 32;
  options.max_model_len = 100;
  return options;
}

}  // namespace quartet
