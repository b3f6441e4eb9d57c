// Which tokens the next forward computes: continuous batching over a block-paged cache. LibTorch-free.
//
// Every step fills one budget of tokens: first the running sequences (one token each when decoding, a chunk of the
// prompt when not), then waiting ones as long as places and blocks last. Where a running sequence finds no free block,
// prompts that are kept for waiting samples are given up, then the sequence that was admitted last goes back to waiting
// and will be computed again (preemption by recomputation).
//
// Who is admitted next: those that were sent back, in the order in which they ran; then
// - for half of the running sequences, whoever is first of the oldest call that waits. Whatever comes later, a
//   sequence waits at most as long as half of the batch takes for what was there before it;
// - for the others, the first of the call with the fewest running sequences: calls share this half evenly, however many
//   prompts each has and however long its answers are. Of equals it is the call whose sequences have run the fewest
//   steps, so that calls take turns where few sequences fit; a new call's count begins where that of the call that was
//   chosen last stands.
// Within a call prompts come in their order. Nobody overtakes the one that is next and waits for blocks.
//
// Full blocks are published (rollout/engine/scheduling/block_pool.h), so that a sequence starts behind what the cache
// still holds of it, whoever computed that. Samples of one prompt are forked: the first one computes the prompt while
// the others wait; the first token of each is drawn from the one row of logits at the prompt's end, at most
// max_num_seqs a step beside those of what runs: where more wait the row is kept for the next steps, unless weights
// change. Then they share its full blocks and get a copy of the last one where that is not full. A block that has more
// than one user is never written, but for the places behind the prompt in that last block, which belong to the sample
// that computed it.
//
//   sequence   a prompt with one sample's answer to it
//   group      a prompt's samples, which share its blocks
//   block      block_size tokens of keys and values
//   published  a full block that others find by the tokens up to its end
//   place      of max_num_seqs: what one running sequence takes
//   chunk      a part of a prompt that one step computes
//   budget     max_num_batched_tokens, of one step
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "core/generation/answer_text.h"
#include "rollout/engine/scheduling/block_pool.h"
#include "rollout/engine/scheduling/token_ids.h"

namespace quartet {

struct SchedulerOptions {
  int64_t num_blocks = 0;
  int64_t block_size = 16;  // tokens
  int64_t max_num_seqs = 256;
  int64_t max_num_batched_tokens = 2048;
  int64_t max_model_len = 2048;  // tokens
};

struct PromptGroup;

struct Sequence {
  uint64_t call = 0;
  uint64_t prompt_index = 0;
  int32_t sample = 0;
  int64_t prompt_len = 0;
  TokenIds ids;
  // Of each generated token.
  std::vector<float> log_probs;
  std::vector<float> sampled_log_probs;
  std::vector<uint64_t> versions;  // of the weights
  std::vector<std::vector<std::pair<int32_t, float>>> alternatives;
  std::unique_ptr<AnswerText> text;                  // of the answer, where it is searched; or null
  std::chrono::steady_clock::time_point last_token;  // when it was drawn; of none, when the sequence came

  // The scheduler's.
  PromptGroup* group = nullptr;
  int64_t computed = 0;         // tokens whose keys and values are in the cache
  std::vector<int32_t> blocks;  // token t lies in blocks[t / block_size]
  int64_t named_blocks = 0;     // full blocks whose prefix is `prefix`
  uint64_t prefix = BlockPool::kEmptyPrefix;
  bool publishes = true;
  bool in_turn = false;  // was admitted as the first of the oldest call
};

// Copies a block of all layers, before anything of the step is written.
struct BlockCopy {
  int32_t from;
  int32_t to;
};

// Tokens [first, first + count) of a sequence; `last`: the sequence's last token is among them, so that its next one
// can be drawn.
struct ScheduledChunk {
  Sequence* sequence;
  int64_t first;
  int64_t count;
  bool last;
};

// What the caller keeps of a row of logits, for the first tokens of samples that wait.
using KeptRow = std::shared_ptr<const void>;

// Sequences that wait, whose first token is to be drawn from a row that was kept in an earlier step.
struct FirstDraws {
  KeptRow row;
  std::vector<Sequence*> sequences;
};

struct ScheduledStep {
  std::vector<BlockCopy> copies;  // in this order: one may read what an earlier one wrote
  std::vector<ScheduledChunk> chunks;
  std::vector<FirstDraws> first_draws;
};

// One thread.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler();

  // INVALID_ARGUMENT for a sequence that is empty, longer than max_model_len, or could not get enough blocks with the
  // whole cache to itself.
  absl::Status CheckFits(int64_t prompt_len, int64_t max_new_tokens) const;

  // Samples [first_sample, first_sample + samples) of a prompt for which CheckFits holds. Without `finds_prefix` they
  // do not begin behind what the cache holds of other prompts. A call is older than those with larger numbers.
  void Add(uint64_t call, uint64_t prompt_index, const std::vector<int32_t>& prompt, int32_t first_sample,
           int32_t samples, bool finds_prefix = true);

  bool idle() const { return calls_.empty(); }

  // What to compute and draw next; nothing only when idle. At most one chunk a sequence.
  ScheduledStep Schedule();

  // The chunk is in the cache now; before any token is appended. Returns the sequences whose next token is to be drawn
  // from the logits behind the chunk: none where it is not `last`, else its own one, and after it those that wait for
  // its prompt. Where some of these are left for the next steps, `keep` is asked for what is kept of these logits.
  std::vector<Sequence*> Computed(const ScheduledChunk& chunk, absl::FunctionRef<KeptRow()> keep);

  // Takes a sequence out that runs or has just been returned by Computed. Its place and blocks are free for the next
  // Schedule.
  std::unique_ptr<Sequence> Finish(Sequence* sequence);

  // Takes out all sequences of a call, running or waiting.
  std::vector<std::unique_ptr<Sequence>> Cancel(uint64_t call);

  // The model's weights are others now. What decodes goes on with its keys and values; nobody else gets them. A
  // sequence whose prompt is computed in part waits again: others would share what two versions computed of it. Samples
  // without a first token have their prompt computed anew.
  void FlushPrefixes();

  // Everything that runs waits again and will be computed anew; no block is in use or found any more.
  void PreemptAll();

  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting() const { return waiting_; }
  int64_t blocks_in_use() const { return pool_.size() - pool_.free(); }
  int64_t num_blocks() const { return pool_.size(); }
  // Places for tokens in the blocks in use that hold none. Between two steps, or when all of a step is computed.
  int64_t empty_places() const;
  int64_t preemptions() const { return preemptions_; }
  // Tokens of the sequences that were admitted, and how many of them were in the cache then.
  int64_t admitted_tokens() const { return admitted_tokens_; }
  int64_t cached_tokens() const { return cached_tokens_; }

 private:
  struct Call;

  bool Grow(Sequence* sequence, int64_t tokens);
  bool MakeRoom(const Sequence* beneficiary);
  bool Admit(PromptGroup* group, ScheduledStep* step);
  PromptGroup* NextGroup();
  void ChooseCall();
  void CountSteps();
  void Drop(uint64_t call_id);
  void Publish(Sequence* sequence);
  void Preempt(size_t running_index);
  void UpdateReady(PromptGroup* group);
  std::vector<Sequence*> TakeUndrawn(PromptGroup* group, int64_t most);
  void ScheduleFirstDraws(ScheduledStep* step);
  void KeepPrompt(const Sequence& sequence);
  void GiveUpPrompt(PromptGroup* group);
  void ReleaseBlocks(std::vector<int32_t>* blocks);
  void Forget(Sequence* sequence);

  const SchedulerOptions options_;
  BlockPool pool_;
  std::map<uint64_t, std::unique_ptr<Call>> calls_;
  std::vector<std::unique_ptr<Sequence>> running_;  // in the order of admission
  std::vector<Sequence*> sent_back_;                // ran and wait again, in the order of admission
  std::vector<PromptGroup*> kept_prompts_;          // groups that hold blocks for samples that wait
  std::vector<PromptGroup*> kept_rows_;             // groups that hold a row for samples that wait
  int64_t first_draws_left_ = 0;                    // of this step
  Call* next_ = nullptr;                            // chosen, and waits for blocks; or null
  bool next_in_turn_ = false;                       // how it was chosen
  int64_t steps_ = 0;                               // where a new call's count begins
  int64_t turns_lead_ = 0;                          // steps run by those admitted in turn, less the others' steps
  int64_t waiting_ = 0;
  int64_t preemptions_ = 0;
  int64_t admitted_tokens_ = 0;
  int64_t cached_tokens_ = 0;
};

}  // namespace quartet
