#include "rollout/scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/logging.h"

namespace quartet {

Scheduler::Scheduler(const SchedulerOptions& options) : options_(options), references_(options.num_blocks) {
  for (int64_t block = options.num_blocks; block > 0; --block) free_.push_back(static_cast<int32_t>(block - 1));
}

absl::Status Scheduler::CheckFits(int64_t prompt_len, int64_t max_new_tokens) const {
  if (prompt_len < 1) return absl::InvalidArgumentError("ids are empty; at least 1 token is needed");
  if (prompt_len + max_new_tokens > options_.max_model_len) {
    return absl::InvalidArgumentError(absl::StrCat("ids (", prompt_len, ") and max_new_tokens (", max_new_tokens,
                                                   ") together exceed max_model_len = ", options_.max_model_len));
  }
  // The last token that is generated is never put in the cache.
  const int64_t tokens = prompt_len + std::max<int64_t>(max_new_tokens - 1, 0);
  const int64_t blocks = (tokens + options_.block_size - 1) / options_.block_size;
  if (blocks > options_.num_blocks) {
    return absl::ResourceExhaustedError(absl::StrCat("ids (", prompt_len, ") and max_new_tokens (", max_new_tokens,
                                                     ") need ", blocks, " blocks of KV cache; there are ",
                                                     options_.num_blocks, " of ", options_.block_size,
                                                     " tokens: raise rollout.kv_cache_bytes"));
  }
  return absl::OkStatus();
}

void Scheduler::Add(uint64_t prompt_index, const std::vector<int32_t>& prompt, int32_t first_sample, int32_t samples) {
  SharedPrompt shared;
  // The last token of the prompt is computed by each sample, since its next token is drawn from there.
  if (samples > 1) shared.blocks_wanted = (static_cast<int64_t>(prompt.size()) - 1) / options_.block_size;
  shared.waiting = samples;
  for (int32_t i = 0; i < samples; ++i) {
    auto sequence = std::make_unique<Sequence>();
    sequence->prompt_index = prompt_index;
    sequence->sample = first_sample + i;
    sequence->prompt_len = static_cast<int64_t>(prompt.size());
    sequence->ids = prompt;
    sequence->prompt = static_cast<int32_t>(prompts_.size());
    waiting_.push_back(std::move(sequence));
  }
  prompts_.push_back(std::move(shared));
}

std::vector<ScheduledChunk> Scheduler::Schedule() {
  std::vector<ScheduledChunk> chunks;
  int64_t budget = options_.max_num_batched_tokens;
  const auto schedule = [&](Sequence* sequence) {
    const int64_t left = static_cast<int64_t>(sequence->ids.size()) - sequence->computed;
    const int64_t count = std::min(left, budget);
    budget -= count;
    chunks.push_back({sequence, sequence->computed, count, count == left});
  };

  const int64_t preemptions_before = preemptions_;
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence* sequence = running_[i].get();
    const int64_t left = static_cast<int64_t>(sequence->ids.size()) - sequence->computed;
    bool fits = Grow(sequence, sequence->computed + std::min(left, budget));
    while (!fits && MakeRoom(sequence)) fits = Grow(sequence, sequence->computed + std::min(left, budget));
    // MakeRoom preempts from the back and never the beneficiary: what is not served here is the last one.
    if (!fits) {
      QUARTET_CHECK(i > 0 && i + 1 == running_.size()) << "a sequence that fits the cache found no blocks";
      Preempt(i);
      break;
    }
    schedule(sequence);
  }
  if (preemptions_ != preemptions_before) return chunks;

  for (size_t i = 0; i < waiting_.size();) {
    if (budget == 0 || static_cast<int64_t>(running_.size()) >= options_.max_num_seqs) break;
    Sequence* sequence = waiting_[i].get();
    SharedPrompt& prompt = prompts_[sequence->prompt];
    if (prompt.computing != nullptr) {
      ++i;  // comes back when the shared blocks are there
      continue;
    }
    const int64_t length = static_cast<int64_t>(sequence->ids.size());
    const int64_t blocks = (length + options_.block_size - 1) / options_.block_size;
    const int64_t new_blocks = blocks - static_cast<int64_t>(prompt.blocks.size());
    // One block in reserve for each that runs, so that admitting does not preempt at once.
    if (new_blocks + static_cast<int64_t>(running_.size()) > free_blocks()) {
      if (!running_.empty()) break;
      // Nothing runs: what is not free is held by shared prompts, of which the own one may stay.
      for (SharedPrompt& other : prompts_) {
        if (&other != &prompt) Release(&other.blocks);
      }
      if (new_blocks > free_blocks()) Release(&prompt.blocks);
    }
    sequence->blocks = prompt.blocks;
    for (const int32_t block : sequence->blocks) ++references_[block];
    sequence->computed = static_cast<int64_t>(prompt.blocks.size()) * options_.block_size;
    if (prompt.blocks.empty() && prompt.blocks_wanted > 0) prompt.computing = sequence;
    --prompt.waiting;
    DropUnusedPrompt(&prompt);
    QUARTET_CHECK(Grow(sequence, length)) << "admitted a sequence without blocks";
    schedule(sequence);
    running_.push_back(std::move(waiting_[i]));
    waiting_.erase(waiting_.begin() + static_cast<int64_t>(i));
  }
  QUARTET_CHECK(idle() || !chunks.empty())
      << "nothing scheduled with " << running_.size() << " running and " << waiting_.size() << " waiting";
  return chunks;
}

void Scheduler::Computed(const ScheduledChunk& chunk) {
  Sequence* sequence = chunk.sequence;
  sequence->computed = chunk.first + chunk.count;
  SharedPrompt& prompt = prompts_[sequence->prompt];
  if (prompt.computing != sequence || sequence->computed < prompt.blocks_wanted * options_.block_size) return;
  prompt.computing = nullptr;
  if (prompt.waiting == 0) return;
  prompt.blocks.assign(sequence->blocks.begin(), sequence->blocks.begin() + prompt.blocks_wanted);
  for (const int32_t block : prompt.blocks) ++references_[block];
}

std::unique_ptr<Sequence> Scheduler::Finish(Sequence* sequence) {
  const auto it = std::find_if(running_.begin(), running_.end(), [&](const auto& s) { return s.get() == sequence; });
  QUARTET_CHECK(it != running_.end()) << "finishing a sequence that does not run";
  std::unique_ptr<Sequence> finished = std::move(*it);
  running_.erase(it);
  Release(&finished->blocks);
  return finished;
}

void Scheduler::Clear() {
  for (const auto& sequence : running_) Release(&sequence->blocks);
  for (SharedPrompt& prompt : prompts_) Release(&prompt.blocks);
  running_.clear();
  waiting_.clear();
  prompts_.clear();
  QUARTET_CHECK(free_blocks() == options_.num_blocks) << "blocks are lost";
}

// Gives the sequence blocks for its first `tokens` tokens, or none at all.
bool Scheduler::Grow(Sequence* sequence, int64_t tokens) {
  const int64_t wanted = (tokens + options_.block_size - 1) / options_.block_size;
  const int64_t more = wanted - static_cast<int64_t>(sequence->blocks.size());
  if (more > free_blocks()) return false;
  for (int64_t i = 0; i < more; ++i) {
    const int32_t block = free_.back();
    free_.pop_back();
    references_[block] = 1;
    sequence->blocks.push_back(block);
  }
  return true;
}

// Frees some blocks; false where nothing can be given up but the beneficiary itself.
bool Scheduler::MakeRoom(const Sequence* beneficiary) {
  for (SharedPrompt& prompt : prompts_) {
    if (prompt.blocks.empty()) continue;
    Release(&prompt.blocks);
    return true;
  }
  if (running_.back().get() == beneficiary) return false;
  Preempt(running_.size() - 1);
  return true;
}

void Scheduler::Release(std::vector<int32_t>* blocks) {
  for (auto it = blocks->rbegin(); it != blocks->rend(); ++it) {
    if (--references_[*it] == 0) free_.push_back(*it);
  }
  blocks->clear();
}

void Scheduler::DropUnusedPrompt(SharedPrompt* prompt) {
  if (prompt->waiting == 0) Release(&prompt->blocks);
}

void Scheduler::Preempt(size_t running_index) {
  std::unique_ptr<Sequence> sequence = std::move(running_[running_index]);
  running_.erase(running_.begin() + static_cast<int64_t>(running_index));
  Release(&sequence->blocks);
  sequence->computed = 0;
  SharedPrompt& prompt = prompts_[sequence->prompt];
  if (prompt.computing == sequence.get()) prompt.computing = nullptr;
  ++prompt.waiting;
  waiting_.push_front(std::move(sequence));
  ++preemptions_;
}

}  // namespace quartet
