#include "rollout/dispatcher.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

constexpr std::chrono::milliseconds kPoll{5};
// Work is cut into messages of about this many prompt tokens.
constexpr int64_t kWorkTokens = 100'000;

}  // namespace

struct Dispatcher::Call {
  std::deque<GenerateReply> replies;
  int64_t left = 0;  // sequences
  // By engine.
  std::vector<int64_t> left_on;
  std::vector<double> load_on;
  absl::Status status;
};

Dispatcher::Dispatcher(const DispatcherOptions& options)
    : options_(options), works_(engines()), load_(engines()), holds_answered_(options.ranks) {}

Dispatcher::~Dispatcher() = default;

absl::StatusOr<std::unique_ptr<Dispatcher::Running>> Dispatcher::Begin(const GenerateHeader& header,
                                                                       const std::vector<Prompt>& prompts,
                                                                       const std::function<absl::Status()>& begin,
                                                                       const std::function<bool()>& gone) {
  std::unique_lock lock(mutex_);
  QUARTET_RETURN_IF_ERROR(Wait(&lock, gone, [this] { return !paused_; }));
  QUARTET_RETURN_IF_ERROR(begin());
  uint64_t id = 0;
  QUARTET_RETURN_IF_ERROR(Admit(header, prompts, &id));
  return std::unique_ptr<Running>(new Running(this, id, calls_.at(id)));
}

absl::Status Dispatcher::Generate(const GenerateHeader& header, const std::vector<Prompt>& prompts,
                                  const std::function<absl::Status()>& begin, const std::function<bool()>& gone,
                                  const std::function<bool(GenerateReply)>& reply) {
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<Running> call, Begin(header, prompts, begin, gone));
  for (;;) {
    QUARTET_ASSIGN_OR_RETURN(std::deque<GenerateReply> replies, call->Next(gone));
    if (replies.empty()) return absl::OkStatus();
    for (GenerateReply& one : replies) {
      if (!reply(std::move(one))) return absl::CancelledError("the client is gone");
    }
  }
}

Dispatcher::Running::Running(Dispatcher* dispatcher, uint64_t id, std::shared_ptr<Call> call)
    : dispatcher_(dispatcher), id_(id), call_(std::move(call)) {}

Dispatcher::Running::~Running() {
  const std::lock_guard lock(dispatcher_->mutex_);
  dispatcher_->GiveUp(id_);
}

absl::StatusOr<std::deque<GenerateReply>> Dispatcher::Running::Next(const std::function<bool()>& gone) {
  std::unique_lock lock(dispatcher_->mutex_);
  const auto news = [this] { return !call_->replies.empty() || !call_->status.ok() || call_->left == 0; };
  QUARTET_RETURN_IF_ERROR(dispatcher_->Wait(&lock, gone, news));
  std::deque<GenerateReply> replies = std::exchange(call_->replies, {});
  if (replies.empty()) QUARTET_RETURN_IF_ERROR(call_->status);
  return replies;
}

absl::StatusOr<int64_t> Dispatcher::Pause(PauseRequest::Mode mode, const std::function<bool()>& gone) {
  const std::lock_guard one_at_a_time(pause_mutex_);
  std::unique_lock lock(mutex_);
  return PauseLocked(&lock, mode, gone);
}

void Dispatcher::Resume() {
  const std::lock_guard one_at_a_time(pause_mutex_);
  const std::lock_guard lock(mutex_);
  Release();
}

absl::Status Dispatcher::Quietly(const std::function<bool()>& gone, const std::function<absl::Status()>& work) {
  const std::lock_guard one_at_a_time(pause_mutex_);
  std::unique_lock lock(mutex_);
  const bool was_paused = paused_;
  QUARTET_RETURN_IF_ERROR(PauseLocked(&lock, was_paused ? PauseRequest::KEEP : PauseRequest::WAIT, gone).status());
  lock.unlock();
  absl::Status status = work();
  lock.lock();
  if (!was_paused) Release();
  return status;
}

absl::StatusOr<int64_t> Dispatcher::PauseLocked(std::unique_lock<std::mutex>* lock, PauseRequest::Mode mode,
                                                const std::function<bool()>& gone) {
  const bool was_paused = paused_;
  if (mode == PauseRequest::WAIT && in_flight_ > 0) Release();
  paused_ = true;
  absl::Cleanup undo = [&] {
    if (!was_paused) {
      Release();
    } else if (!held_) {
      Hold();
    }
  };
  if (mode == PauseRequest::ABORT) {
    for (const auto& [id, call] : calls_) {
      for (int engine = 0; engine < engines(); ++engine) {
        if (call->left_on[engine] > 0) WorkFor(engine).add_abort(id);
      }
    }
  }
  if (mode != PauseRequest::KEEP) {
    QUARTET_RETURN_IF_ERROR(Wait(lock, gone, [this] { return in_flight_ == 0; }));
  }
  if (!held_) Hold();
  QUARTET_RETURN_IF_ERROR(
      Wait(lock, gone, [this] { return *std::min_element(holds_answered_.begin(), holds_answered_.end()) >= hold_; }));
  std::move(undo).Cancel();
  return in_flight_;
}

bool Dispatcher::paused() const {
  const std::lock_guard lock(mutex_);
  return paused_;
}

bool Dispatcher::Take(int group, std::vector<Works>* works) {
  const int begin = options_.lockstep ? 0 : group, end = options_.lockstep ? engines() : group + 1;
  works->assign(engines(), {});
  std::unique_lock lock(mutex_);
  work_changed_.wait(lock, [&] {
    return closed_ ||
           std::any_of(works_.begin() + begin, works_.begin() + end, [](const Works& w) { return !w.empty(); });
  });
  for (int engine = begin; engine < end; ++engine) {
    Works& batch = (*works)[engine] = std::exchange(works_[engine], {});
    if (batch.empty()) batch.emplace_back();
    batch.back().set_complete(true);
    batch.back().set_in_flight(in_flight_ > 0);
  }
  return !closed_;
}

void Dispatcher::Answer(int rank, RankEvents events) {
  const std::lock_guard lock(mutex_);
  for (RankEvent& event : *events.mutable_events()) {
    if (event.has_held()) {
      holds_answered_[rank] = event.held();
      continue;
    }
    const auto error = [&] {
      return absl::Status(static_cast<absl::StatusCode>(event.error().code()),
                          absl::StrCat("rank ", rank, ": ", event.error().message()));
    };
    if (event.call() == 0) {
      for (const auto& [id, call] : calls_) {
        if (call->left_on[engine_of(rank)] > 0) call->status.Update(error());
      }
      continue;
    }
    const auto found = calls_.find(event.call());
    if (found == calls_.end()) continue;  // given up
    Call& call = *found->second;
    if (event.has_error()) {
      call.status.Update(error());
    } else if (event.has_tokens()) {
      *call.replies.emplace_back().mutable_tokens() = std::move(*event.mutable_tokens());
    } else {
      *call.replies.emplace_back().mutable_sequence() = std::move(*event.mutable_sequence());
      Account(&call, engine_of(rank));
    }
  }
  changed_.notify_all();
}

void Dispatcher::Fail(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  failure_.Update(status);
  changed_.notify_all();
}

void Dispatcher::Close() {
  Fail(absl::UnavailableError("the service is stopping"));
  const std::lock_guard lock(mutex_);
  closed_ = true;
  work_changed_.notify_all();
}

// Until `condition`; an error where the caller has gone or everything has failed.
template <typename Condition>
absl::Status Dispatcher::Wait(std::unique_lock<std::mutex>* lock, const std::function<bool()>& gone,
                              Condition condition) {
  while (!condition()) {
    QUARTET_RETURN_IF_ERROR(failure_);
    if (gone()) return absl::CancelledError("the client has closed the call, or its deadline has passed");
    changed_.wait_for(*lock, kPoll);
  }
  return absl::OkStatus();
}

absl::Status Dispatcher::Admit(const GenerateHeader& header, const std::vector<Prompt>& prompts, uint64_t* id) {
  QUARTET_RETURN_IF_ERROR(failure_);
  const int64_t samples = static_cast<int64_t>(prompts.size()) * header.sampling().n_samples();
  if (samples > max_sequences()) {
    return absl::ResourceExhaustedError(absl::StrCat("the call asks for ", samples, " sequences; at most ",
                                                     max_sequences(), " are allowed: the ", capacity(),
                                                     " that can run and rollout.max_waiting = ", options_.max_waiting));
  }
  const int64_t waiting = std::max<int64_t>(0, in_flight_ - capacity());
  if (waiting >= options_.max_waiting && in_flight_ + samples > capacity()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the call asks for ", samples, " sequences while ", in_flight_ - waiting, " of ", capacity(),
                     " run and ", waiting, " wait: rollout.max_waiting = ", options_.max_waiting, " is reached"));
  }
  *id = ++last_call_;
  auto call = std::make_shared<Call>();
  call->left = samples;
  call->left_on.resize(engines());
  call->load_on.resize(engines());
  Spread(*id, header, prompts, call.get());
  in_flight_ += samples;
  calls_.emplace(*id, std::move(call));
  work_changed_.notify_all();
  return absl::OkStatus();
}

// The longest prompts first, each to the engine with the least to do. Samples of one prompt stay together, to share its
// cache, unless there are too few prompts to keep all engines busy.
void Dispatcher::Spread(uint64_t id, const GenerateHeader& header, const std::vector<Prompt>& prompts, Call* call) {
  const SamplingParams& sampling = header.sampling();
  const bool few = static_cast<int64_t>(prompts.size()) < int64_t{4} * engines();
  const int32_t pieces = few ? std::min(sampling.n_samples(), engines()) : 1;
  struct Piece {
    const Prompt* prompt;
    int32_t first;
    int32_t samples;
    double cost;
  };
  std::vector<Piece> tasks;
  for (const Prompt& prompt : prompts) {
    for (int32_t piece = 0; piece < pieces; ++piece) {
      const auto first = static_cast<int32_t>(int64_t{sampling.n_samples()} * piece / pieces);
      const auto end = static_cast<int32_t>(int64_t{sampling.n_samples()} * (piece + 1) / pieces);
      const double cost = prompt.ids_size() + double{1} * (end - first) * sampling.max_new_tokens();
      tasks.push_back({&prompt, first, end - first, cost});
    }
  }
  std::stable_sort(tasks.begin(), tasks.end(), [](const Piece& a, const Piece& b) { return a.cost > b.cost; });
  std::vector<int64_t> tokens(engines());  // in the engine's present message
  for (const Piece& task : tasks) {
    const auto engine = static_cast<int>(std::min_element(load_.begin(), load_.end()) - load_.begin());
    load_[engine] += task.cost;
    call->load_on[engine] += task.cost;
    call->left_on[engine] += task.samples;
    if (tokens[engine] == 0 || tokens[engine] > kWorkTokens) {
      tokens[engine] = 0;
      CallPart& part = *works_[engine].emplace_back().add_parts();
      part.set_call(id);
      *part.mutable_sampling() = sampling;
      part.set_stream_tokens(header.stream_tokens());
    }
    tokens[engine] += task.prompt->ids_size() + 1;
    GenerateTask& message = *works_[engine].back().mutable_parts(0)->add_tasks();
    *message.mutable_prompt() = *task.prompt;
    message.set_first_sample(task.first);
    message.set_samples(task.samples);
  }
}

// One of the call's sequences on `engine` has ended.
void Dispatcher::Account(Call* call, int engine) {
  const double share = call->load_on[engine] / static_cast<double>(call->left_on[engine]);
  call->load_on[engine] -= share;
  load_[engine] -= share;
  --call->left_on[engine];
  --call->left;
  --in_flight_;
}

// Under the lock.
void Dispatcher::GiveUp(uint64_t id) {
  const std::shared_ptr<Call> call = calls_.at(id);
  for (int engine = 0; engine < engines(); ++engine) {
    if (call->left_on[engine] > 0) WorkFor(engine).add_cancel(id);
    while (call->left_on[engine] > 0) Account(call.get(), engine);
  }
  calls_.erase(id);
  changed_.notify_all();
}

// A message for `engine` to which further work can be added. Under the lock.
RankWork& Dispatcher::WorkFor(int engine) {
  Works& works = works_[engine];
  // What comes after these in time must come after them in a message's order too.
  if (works.empty() || works.back().hold() > 0 || works.back().release() || works.back().cancel_size() > 0 ||
      works.back().abort_size() > 0) {
    works.emplace_back();
  }
  work_changed_.notify_all();
  return works.back();
}

void Dispatcher::Hold() {
  held_ = true;
  ++hold_;
  for (int engine = 0; engine < engines(); ++engine) WorkFor(engine).set_hold(hold_);
}

void Dispatcher::Release() {
  if (held_) {
    for (int engine = 0; engine < engines(); ++engine) WorkFor(engine).set_release(true);
  }
  paused_ = held_ = false;
  changed_.notify_all();
}

}  // namespace quartet
