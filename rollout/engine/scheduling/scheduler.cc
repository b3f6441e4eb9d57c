#include "rollout/engine/scheduling/scheduler.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/division.h"
#include "core/base/logging.h"

namespace quartet {

// The samples of one prompt.
struct PromptGroup {
  uint64_t call = 0;
  int64_t prompt_len = 0;
  bool finds_prefix = true;
  std::deque<std::unique_ptr<Sequence>> waiting;
  int64_t undrawn = 0;                  // of `waiting`, at its end: without a first token, which is not being drawn
  KeptRow row;                          // that it is drawn from; or null
  const Sequence* computing = nullptr;  // runs and computes the prompt, for which the others wait
  bool ready = false;                   // in its call's queue
  std::vector<int32_t> blocks;          // of the prompt, kept for those that wait; or empty
};

struct Scheduler::Call {
  std::vector<std::unique_ptr<PromptGroup>> groups;
  std::deque<PromptGroup*> ready;  // have a sample that can be admitted
  int64_t left = 0;                // sequences, running and waiting
  int64_t running = 0;
  int64_t steps = 0;  // that its sequences have run, counted from steps_ when it came
};

namespace {

bool IsUndrawn(const Sequence& sequence) { return static_cast<int64_t>(sequence.ids.size()) == sequence.prompt_len; }

// Between two steps: all but the token that was drawn last is in the cache.
bool IsDecoding(const Sequence& sequence) {
  return sequence.computed >= sequence.prompt_len && sequence.computed + 1 == static_cast<int64_t>(sequence.ids.size());
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options), pool_(options.num_blocks, options.block_size) {}

Scheduler::~Scheduler() = default;

absl::Status Scheduler::CheckFits(int64_t prompt_len, int64_t max_new_tokens) const {
  if (prompt_len < 1) return absl::InvalidArgumentError("ids are empty; at least 1 token is needed");
  if (prompt_len + max_new_tokens > options_.max_model_len) {
    return absl::InvalidArgumentError(absl::StrCat("ids (", prompt_len, ") and max_new_tokens (", max_new_tokens,
                                                   ") together exceed max_model_len = ", options_.max_model_len));
  }
  // The last token that is generated is never put in the cache.
  const int64_t tokens = prompt_len + std::max<int64_t>(max_new_tokens - 1, 0);
  const int64_t blocks = CeilDivide(tokens, options_.block_size);
  if (blocks > options_.num_blocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("ids (", prompt_len, ") and max_new_tokens (", max_new_tokens, ") need ", blocks,
                     " blocks of KV cache; there are ", options_.num_blocks, " of ", options_.block_size,
                     " tokens: raise rollout.kv_cache_bytes, or rollout.gpu_memory_utilization where that is set"));
  }
  return absl::OkStatus();
}

void Scheduler::Add(uint64_t call_id, uint64_t prompt_index, const std::vector<int32_t>& prompt, int32_t first_sample,
                    int32_t samples, bool finds_prefix) {
  const auto now = std::chrono::steady_clock::now();
  std::unique_ptr<Call>& call = calls_[call_id];
  if (call == nullptr) {
    call = std::make_unique<Call>();
    call->steps = steps_;
  }
  PromptGroup* group = call->groups.emplace_back(std::make_unique<PromptGroup>()).get();
  group->call = call_id;
  group->prompt_len = static_cast<int64_t>(prompt.size());
  group->finds_prefix = finds_prefix;
  group->undrawn = samples;
  const auto shared = std::make_shared<const std::vector<int32_t>>(prompt);
  for (int32_t i = 0; i < samples; ++i) {
    auto sequence = std::make_unique<Sequence>();
    sequence->last_token = now;
    sequence->call = call_id;
    sequence->prompt_index = prompt_index;
    sequence->sample = first_sample + i;
    sequence->prompt_len = group->prompt_len;
    sequence->ids = TokenIds(shared);
    sequence->group = group;
    group->waiting.push_back(std::move(sequence));
  }
  group->ready = true;
  call->ready.push_back(group);
  call->left += samples;
  waiting_ += samples;
}

ScheduledStep Scheduler::Schedule() {
  ScheduledStep step;
  int64_t budget = options_.max_num_batched_tokens;
  const auto schedule = [&](Sequence* sequence) {
    const int64_t left = static_cast<int64_t>(sequence->ids.size()) - sequence->computed;
    const int64_t count = std::min(left, budget);
    budget -= count;
    step.chunks.push_back({sequence, sequence->computed, count, count == left});
  };

  const int64_t preemptions_before = preemptions_;
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence* sequence = running_[i].get();
    const int64_t left = static_cast<int64_t>(sequence->ids.size()) - sequence->computed;
    const int64_t tokens = sequence->computed + std::min(left, budget);
    bool fits = Grow(sequence, tokens);
    while (!fits && MakeRoom(sequence)) fits = Grow(sequence, tokens);
    // MakeRoom preempts from the back and never the beneficiary: what is not served here is the last one.
    if (!fits) {
      QUARTET_CHECK(i > 0 && i + 1 == running_.size()) << "a sequence that fits the cache found no blocks";
      Preempt(i);
      break;
    }
    schedule(sequence);
  }
  while (preemptions_ == preemptions_before && budget > 0 && running() < options_.max_num_seqs) {
    PromptGroup* group = NextGroup();
    if (group == nullptr || !Admit(group, &step)) break;
    schedule(running_.back().get());
  }
  CountSteps();
  ScheduleFirstDraws(&step);
  QUARTET_CHECK(idle() || !step.chunks.empty() || !step.first_draws.empty())
      << "nothing scheduled with " << running() << " running and " << waiting_ << " waiting";
  return step;
}

// From rows that were kept; those that are served move behind the others.
void Scheduler::ScheduleFirstDraws(ScheduledStep* step) {
  first_draws_left_ = options_.max_num_seqs;
  for (auto left = std::min(std::ssize(kept_rows_), first_draws_left_); left > 0; --left) {
    PromptGroup* group = kept_rows_.front();
    kept_rows_.erase(kept_rows_.begin());
    step->first_draws.push_back({group->row, TakeUndrawn(group, first_draws_left_ / left)});
    if (group->undrawn > 0) {
      kept_rows_.push_back(group);
    } else {
      group->row = nullptr;
    }
  }
}

// Some of the group's that wait for a first token, which is drawn in this step.
std::vector<Sequence*> Scheduler::TakeUndrawn(PromptGroup* group, int64_t most) {
  const int64_t count = std::min({most, group->undrawn, first_draws_left_});
  const int64_t first = std::ssize(group->waiting) - group->undrawn;
  std::vector<Sequence*> taken;
  for (int64_t i = first; i < first + count; ++i) taken.push_back(group->waiting[i].get());
  group->undrawn -= count;
  first_draws_left_ -= count;
  UpdateReady(group);
  return taken;
}

std::vector<Sequence*> Scheduler::Computed(const ScheduledChunk& chunk, absl::FunctionRef<KeptRow()> keep) {
  Sequence* sequence = chunk.sequence;
  PromptGroup* group = sequence->group;
  sequence->computed = chunk.first + chunk.count;
  Publish(sequence);
  std::vector<Sequence*> drawn;
  if (chunk.last) drawn.push_back(sequence);
  if (group->computing == sequence && sequence->computed >= group->prompt_len) {
    group->computing = nullptr;
    if (!group->waiting.empty()) KeepPrompt(*sequence);
    if (IsUndrawn(*sequence)) {
      const std::vector<Sequence*> siblings = TakeUndrawn(group, group->undrawn);
      drawn.insert(drawn.end(), siblings.begin(), siblings.end());
      if (group->undrawn > 0) {
        group->row = keep();
        kept_rows_.push_back(group);
      }
    }
    UpdateReady(group);
  }
  return drawn;
}

std::unique_ptr<Sequence> Scheduler::Finish(Sequence* sequence) {
  const auto is_it = [sequence](const auto& s) { return s.get() == sequence; };
  std::unique_ptr<Sequence> finished;
  PromptGroup* group = sequence->group;
  if (const auto it = std::find_if(running_.begin(), running_.end(), is_it); it != running_.end()) {
    finished = std::move(*it);
    running_.erase(it);
    Forget(finished.get());
    --calls_.at(sequence->call)->running;
  } else {
    const auto waiting = std::find_if(group->waiting.begin(), group->waiting.end(), is_it);
    QUARTET_CHECK(waiting != group->waiting.end()) << "finishing a sequence that is not there";
    finished = std::move(*waiting);
    group->waiting.erase(waiting);
    std::erase(sent_back_, sequence);
    --waiting_;
    if (group->waiting.empty()) GiveUpPrompt(group);
    UpdateReady(group);
  }
  if (--calls_.at(finished->call)->left == 0) Drop(finished->call);
  finished->group = nullptr;
  return finished;
}

std::vector<std::unique_ptr<Sequence>> Scheduler::Cancel(uint64_t call_id) {
  std::vector<std::unique_ptr<Sequence>> cancelled;
  const auto call = calls_.find(call_id);
  if (call == calls_.end()) return cancelled;
  for (std::unique_ptr<Sequence>& sequence : running_) {
    if (sequence->call != call_id) continue;
    Forget(sequence.get());
    cancelled.push_back(std::move(sequence));
  }
  std::erase(running_, nullptr);
  for (const auto& group : call->second->groups) {
    GiveUpPrompt(group.get());
    std::erase(kept_rows_, group.get());
    waiting_ -= static_cast<int64_t>(group->waiting.size());
    for (std::unique_ptr<Sequence>& sequence : group->waiting) cancelled.push_back(std::move(sequence));
  }
  for (const auto& sequence : cancelled) sequence->group = nullptr;
  std::erase_if(sent_back_, [call_id](const Sequence* sequence) { return sequence->call == call_id; });
  Drop(call_id);
  return cancelled;
}

void Scheduler::FlushPrefixes() {
  // From the back, so that they wait in the order in which they ran.
  for (size_t i = running_.size(); i-- > 0;) {
    if (!IsDecoding(*running_[i])) Preempt(i);
  }
  while (!kept_prompts_.empty()) GiveUpPrompt(kept_prompts_.back());
  for (PromptGroup* group : std::exchange(kept_rows_, {})) {
    group->row = nullptr;
    UpdateReady(group);
  }
  pool_.Flush();
  for (const auto& sequence : running_) sequence->publishes = false;
}

void Scheduler::PreemptAll() {
  // From the back, so that they wait in the order in which they ran.
  while (!running_.empty()) Preempt(running_.size() - 1);
  FlushPrefixes();
  QUARTET_CHECK(blocks_in_use() == 0) << blocks_in_use() << " blocks are lost";
}

// Blocks that several sequences use are full.
int64_t Scheduler::empty_places() const {
  const int64_t block_size = options_.block_size;
  int64_t empty = 0;
  for (const auto& sequence : running_) {
    empty += static_cast<int64_t>(sequence->blocks.size()) * block_size - sequence->computed;
  }
  for (const PromptGroup* group : kept_prompts_) {
    // As long as the sample that computed the prompt runs, its last block is that sample's.
    if (pool_.is_shared(group->blocks.back())) continue;
    empty += static_cast<int64_t>(group->blocks.size()) * block_size - group->prompt_len;
  }
  return empty;
}

// Gives the sequence blocks for its first `tokens` tokens, or none at all.
bool Scheduler::Grow(Sequence* sequence, int64_t tokens) {
  const int64_t wanted = CeilDivide(tokens, options_.block_size);
  if (wanted - static_cast<int64_t>(sequence->blocks.size()) > pool_.free()) return false;
  while (static_cast<int64_t>(sequence->blocks.size()) < wanted) sequence->blocks.push_back(*pool_.Take());
  return true;
}

// Frees some blocks; false where nothing can be given up but the beneficiary itself.
bool Scheduler::MakeRoom(const Sequence* beneficiary) {
  if (!kept_prompts_.empty()) {
    GiveUpPrompt(kept_prompts_.back());
    return true;
  }
  if (running_.back().get() == beneficiary) return false;
  Preempt(running_.size() - 1);
  return true;
}

// Makes the first sample of the group that waits a running one, with all blocks that it needs now. False where there
// are not enough.
bool Scheduler::Admit(PromptGroup* group, ScheduledStep* step) {
  Sequence* sequence = group->waiting.front().get();
  const auto length = static_cast<int64_t>(sequence->ids.size());
  const int64_t block_size = options_.block_size;
  // What the cache holds of it. The last token is always computed: its logits are wanted.
  std::vector<int32_t> found, joined;
  std::vector<uint64_t> prefixes;
  for (int64_t begin = 0; group->finds_prefix && begin + block_size < length; begin += block_size) {
    const uint64_t before = prefixes.empty() ? BlockPool::kEmptyPrefix : prefixes.back();
    const auto hit = pool_.Find(before, sequence->ids.Part(begin, block_size, &joined));
    if (!hit.has_value()) break;
    found.push_back(hit->block);
    prefixes.push_back(hit->prefix);
  }
  auto cached = static_cast<int64_t>(found.size()) * block_size;
  const bool forked = !group->blocks.empty() && cached < group->prompt_len && !IsUndrawn(*sequence);
  const int64_t shared = forked ? group->prompt_len / block_size : static_cast<int64_t>(found.size());
  const std::vector<int32_t>& source = forked ? group->blocks : found;
  int64_t free_after = pool_.free();
  for (int64_t i = 0; i < shared; ++i) free_after -= pool_.is_free(source[i]) ? 1 : 0;
  free_after -= CeilDivide(length, block_size) - shared;
  // One block in reserve for each that runs, so that admitting does not preempt at once.
  if (free_after < running()) {
    if (!running_.empty()) return false;
    // Nothing runs: what is in use is kept for samples that wait.
    QUARTET_CHECK(!kept_prompts_.empty()) << "a sequence that fits the cache found no blocks";
    while (!kept_prompts_.empty()) GiveUpPrompt(kept_prompts_.back());
    return Admit(group, step);
  }

  for (int64_t i = 0; i < shared; ++i) pool_.Share(source[i]);
  sequence->blocks.assign(source.begin(), source.begin() + shared);
  // The prompt's full blocks are published, unless weights have changed since or hashes collided.
  sequence->named_blocks = std::min<int64_t>(shared, static_cast<int64_t>(found.size()));
  sequence->publishes = sequence->named_blocks == shared;
  sequence->prefix = sequence->named_blocks == 0 ? BlockPool::kEmptyPrefix : prefixes[sequence->named_blocks - 1];
  sequence->computed = forked ? group->prompt_len : cached;
  if (forked && group->prompt_len % block_size != 0) {
    const int32_t copy = *pool_.Take();
    step->copies.push_back({group->blocks.back(), copy});
    sequence->blocks.push_back(copy);
  }
  QUARTET_CHECK(Grow(sequence, length)) << "admitted a sequence without blocks";
  admitted_tokens_ += length;
  cached_tokens_ += sequence->computed;

  if (std::erase(sent_back_, sequence) == 0) {
    sequence->in_turn = next_in_turn_;
    next_ = nullptr;
  }
  Call& call = *calls_.at(group->call);
  if (IsUndrawn(*sequence)) --group->undrawn;
  running_.push_back(std::move(group->waiting.front()));
  group->waiting.pop_front();
  --waiting_;
  ++call.running;
  const bool others_wait = !group->waiting.empty();
  if (others_wait && sequence->computed < group->prompt_len) group->computing = sequence;
  if (!others_wait) GiveUpPrompt(group);
  UpdateReady(group);
  return true;
}

// Whose first waiting sample is to be admitted next; null where none can be.
PromptGroup* Scheduler::NextGroup() {
  // It is the first of its group, too.
  for (const Sequence* sequence : sent_back_) {
    if (sequence->group->ready) return sequence->group;
  }
  if (next_ == nullptr || next_->ready.empty()) ChooseCall();
  return next_ == nullptr ? nullptr : next_->ready.front();
}

void Scheduler::ChooseCall() {
  Call* oldest = nullptr;
  Call* least = nullptr;
  for (const auto& [id, call] : calls_) {
    if (call->ready.empty()) continue;
    if (oldest == nullptr) oldest = call.get();
    if (least == nullptr || std::tie(call->running, call->steps) < std::tie(least->running, least->steps)) {
      least = call.get();
    }
  }
  const int64_t in_turn = std::count_if(running_.begin(), running_.end(), [](const auto& s) { return s->in_turn; });
  const int64_t lead = 2 * in_turn - running();
  next_in_turn_ = lead < 0 || (lead == 0 && turns_lead_ < 0);
  next_ = next_in_turn_ ? oldest : least;
  if (!next_in_turn_ && least != nullptr) steps_ = least->steps;
}

// A step of all that run.
void Scheduler::CountSteps() {
  for (const auto& sequence : running_) {
    ++calls_.at(sequence->call)->steps;
    turns_lead_ += sequence->in_turn ? 1 : -1;
  }
  // What is longer ago than a sequence can run is forgotten.
  turns_lead_ = std::clamp(turns_lead_, -options_.max_model_len, options_.max_model_len);
}

void Scheduler::Drop(uint64_t call_id) {
  const auto call = calls_.find(call_id);
  if (next_ == call->second.get()) next_ = nullptr;
  calls_.erase(call);
}

void Scheduler::Publish(Sequence* sequence) {
  if (!sequence->publishes) return;
  const int64_t block_size = options_.block_size;
  std::vector<int32_t> joined;
  for (; (sequence->named_blocks + 1) * block_size <= sequence->computed; ++sequence->named_blocks) {
    const int64_t block = sequence->named_blocks;
    sequence->prefix = pool_.Publish(sequence->blocks[block], sequence->prefix,
                                     sequence->ids.Part(block * block_size, block_size, &joined));
  }
}

void Scheduler::Preempt(size_t running_index) {
  std::unique_ptr<Sequence> sequence = std::move(running_[running_index]);
  running_.erase(running_.begin() + static_cast<int64_t>(running_index));
  PromptGroup* group = sequence->group;
  Forget(sequence.get());
  --calls_.at(group->call)->running;
  // Whoever runs was admitted before those that have been sent back.
  sent_back_.insert(sent_back_.begin(), sequence.get());
  if (IsUndrawn(*sequence)) ++group->undrawn;
  group->waiting.push_front(std::move(sequence));
  ++waiting_;
  ++preemptions_;
  UpdateReady(group);
}

// Whether one of its samples can be admitted. They are the next of the call.
void Scheduler::UpdateReady(PromptGroup* group) {
  const bool awaits_draw = group->row != nullptr && std::ssize(group->waiting) == group->undrawn;
  const bool ready = !group->waiting.empty() && group->computing == nullptr && !awaits_draw;
  if (ready == std::exchange(group->ready, ready)) return;
  std::deque<PromptGroup*>& queue = calls_.at(group->call)->ready;
  if (ready) {
    queue.push_front(group);
  } else {
    std::erase(queue, group);
  }
}

void Scheduler::KeepPrompt(const Sequence& sequence) {
  PromptGroup* group = sequence.group;
  GiveUpPrompt(group);
  const int64_t blocks = CeilDivide(group->prompt_len, options_.block_size);
  group->blocks.assign(sequence.blocks.begin(), sequence.blocks.begin() + blocks);
  for (const int32_t block : group->blocks) pool_.Share(block);
  kept_prompts_.push_back(group);
}

void Scheduler::GiveUpPrompt(PromptGroup* group) {
  if (group->blocks.empty()) return;
  ReleaseBlocks(&group->blocks);
  std::erase(kept_prompts_, group);
}

// From the back: the beginning of a prefix is useful to more and is given away last.
void Scheduler::ReleaseBlocks(std::vector<int32_t>* blocks) {
  for (auto it = blocks->rbegin(); it != blocks->rend(); ++it) pool_.Release(*it);
  blocks->clear();
}

// What a sequence that ran has in the cache.
void Scheduler::Forget(Sequence* sequence) {
  ReleaseBlocks(&sequence->blocks);
  sequence->computed = 0;
  sequence->named_blocks = 0;
  sequence->prefix = BlockPool::kEmptyPrefix;
  sequence->publishes = true;
  if (sequence->group->computing == sequence) sequence->group->computing = nullptr;
}

}  // namespace quartet
