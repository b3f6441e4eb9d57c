// Which tokens the next forward computes: continuous batching over a block-paged cache. LibTorch-free.
//
// Every step fills one budget of tokens: first the running sequences (one token each when decoding, a chunk of the
// prompt when not), then waiting ones in the order they came, as long as places and blocks last. Where a running
// sequence finds no free block, shared prompts that nobody runs with are given up, then the sequence that was admitted
// last goes back to waiting and will be computed again (preemption by recomputation).
//
// Samples of one prompt share its full blocks: the first one computes them, the others wait for that and start behind
// them. Blocks are reference counted; a shared block is full and never written again.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"

namespace quartet {

struct SchedulerOptions {
  int64_t num_blocks = 0;
  int64_t block_size = 16;  // tokens
  int64_t max_num_seqs = 256;
  int64_t max_num_batched_tokens = 2048;
  int64_t max_model_len = 2048;  // tokens
};

struct Sequence {
  uint64_t prompt_index = 0;
  int32_t sample = 0;
  int64_t prompt_len = 0;
  std::vector<int32_t> ids;  // prompt, then what was generated
  std::vector<float> log_probs;
  std::vector<float> sampled_log_probs;

  // The scheduler's.
  int64_t computed = 0;         // tokens whose keys and values are in the cache
  std::vector<int32_t> blocks;  // token t lies in blocks[t / block_size]
  int32_t prompt = 0;           // which Add
};

// Tokens [first, first + count) of a sequence; `last`: the sequence's last token is among them, so that its next one
// can be drawn.
struct ScheduledChunk {
  Sequence* sequence;
  int64_t first;
  int64_t count;
  bool last;
};

// One thread.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  // INVALID_ARGUMENT for a sequence that is empty or longer than max_model_len, RESOURCE_EXHAUSTED for one that could
  // not get enough blocks with the whole cache to itself.
  absl::Status CheckFits(int64_t prompt_len, int64_t max_new_tokens) const;

  // Samples [first_sample, first_sample + samples) of a prompt for which CheckFits holds.
  void Add(uint64_t prompt_index, const std::vector<int32_t>& prompt, int32_t first_sample, int32_t samples);

  bool idle() const { return running_.empty() && waiting_.empty(); }

  // What to compute next; empty only when idle. At most one chunk a sequence.
  std::vector<ScheduledChunk> Schedule();

  // The chunk is in the cache now. Before its sequence's next token is appended.
  void Computed(const ScheduledChunk& chunk);

  // Takes a running sequence out. Its place and blocks are free for the next Schedule.
  std::unique_ptr<Sequence> Finish(Sequence* sequence);

  // Drops everything, after an error.
  void Clear();

  int64_t free_blocks() const { return static_cast<int64_t>(free_.size()); }
  int64_t preemptions() const { return preemptions_; }

 private:
  struct SharedPrompt {
    int64_t blocks_wanted = 0;  // full blocks that samples can share; 0: none
    int64_t waiting = 0;        // samples in waiting_
    Sequence* computing = nullptr;
    std::vector<int32_t> blocks;
  };

  bool Grow(Sequence* sequence, int64_t tokens);
  bool MakeRoom(const Sequence* beneficiary);
  void Release(std::vector<int32_t>* blocks);
  void DropUnusedPrompt(SharedPrompt* prompt);
  void Preempt(size_t running_index);

  SchedulerOptions options_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in the order of admission
  std::vector<SharedPrompt> prompts_;
  std::vector<int32_t> free_;  // taken from the back
  std::vector<int32_t> references_;
  int64_t preemptions_ = 0;
};

}  // namespace quartet
