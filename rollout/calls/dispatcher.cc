#include "rollout/calls/dispatcher.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

// How often control looks whether whoever asked has gone.
constexpr std::chrono::milliseconds kPoll{50};
// Work is cut into messages of at most this many prompt tokens, or one prompt.
constexpr int64_t kWorkTokens = 100'000;
// What an engine may have ahead of a call of its affinity, beyond twice what the idlest has: so many times the call.
constexpr double kMostAhead = 4;

}  // namespace

struct Dispatcher::Call {
  CallSink* sink;
  Origin origin;
  GenerateHeader header;
  int64_t left;  // sequences
  bool begun = false;
  bool ended = false;
  // Until it has begun.
  std::vector<Prompt> prompts;
  std::function<absl::Status()> begin;
  // From then on, by engine.
  std::vector<int64_t> left_on;
  std::vector<double> load_on;
  // Of a guest: replies that it has not fetched, with what is made of them.
  struct HeldReply {
    int64_t bytes;
    bool is_sequence;
  };
  std::deque<HeldReply> held_replies;
  int64_t held_bytes = 0;
  int64_t held_sequences = 0;
};

Dispatcher::Dispatcher(const DispatcherOptions& options)
    : options_(options), works_(engines()), load_(engines()), holds_answered_(options.ranks) {}

Dispatcher::~Dispatcher() = default;

absl::StatusOr<std::unique_ptr<Dispatcher::Admission>> Dispatcher::Begin(const GenerateHeader& header,
                                                                         std::vector<Prompt> prompts,
                                                                         std::function<absl::Status()> begin,
                                                                         CallSink* sink, Origin origin) {
  const std::lock_guard lock(mutex_);
  QUARTET_RETURN_IF_ERROR(failure_);
  const int64_t samples = static_cast<int64_t>(prompts.size()) * header.sampling().n_samples();
  QUARTET_RETURN_IF_ERROR(CheckRoom(samples, origin));
  auto call = std::make_unique<Call>(Call{.sink = sink,
                                          .origin = origin,
                                          .header = header,
                                          .left = samples,
                                          .prompts = std::move(prompts),
                                          .begin = std::move(begin),
                                          .left_on = {},
                                          .load_on = {},
                                          .held_replies = {}});
  const uint64_t id = ++last_call_;
  not_begun_ += samples;
  if (!paused_) {
    if (absl::Status status = Start(id, call.get()); !status.ok()) {
      not_begun_ -= samples;
      return status;
    }
  }
  calls_.emplace(id, std::move(call));
  return std::unique_ptr<Admission>(new Admission(this, id));
}

Dispatcher::Admission::~Admission() {
  const std::lock_guard lock(dispatcher_->mutex_);
  Call* const call = dispatcher_->calls_.at(id_).get();
  call->ended = true;  // nobody is to be told
  dispatcher_->GiveUp(id_, call, absl::CancelledError(""));
  dispatcher_->ReleaseAll(call);
  dispatcher_->calls_.erase(id_);
}

void Dispatcher::Admission::Fetched(size_t replies) {
  const std::lock_guard lock(dispatcher_->mutex_);
  dispatcher_->ReleaseReplies(dispatcher_->calls_.at(id_).get(), replies);
}

absl::Status Dispatcher::Admission::Hold(int64_t bytes) {
  const std::lock_guard lock(dispatcher_->mutex_);
  Call* const call = dispatcher_->calls_.at(id_).get();
  if (call->header.stream_tokens() && !call->held_replies.empty()) call->held_replies.front().bytes += bytes;
  return dispatcher_->HoldBytes(call, bytes);
}

void Dispatcher::AbortInFlight() {
  const std::lock_guard lock(mutex_);
  AbortLocked();
}

void Dispatcher::AbortLocked() {
  for (const auto& [id, call] : calls_) {
    for (int engine = 0; call->begun && engine < engines(); ++engine) {
      if (call->left_on[engine] > 0) WorkFor(engine).add_abort(id);
    }
  }
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
  QUARTET_RETURN_IF_ERROR(PauseLocked(&lock, PauseRequest::KEEP, gone).status());
  lock.unlock();
  absl::Status status = work();
  lock.lock();
  if (!was_paused) Release();
  return status;
}

absl::StatusOr<int64_t> Dispatcher::PauseLocked(std::unique_lock<std::mutex>* lock, PauseRequest::Mode mode,
                                                const std::function<bool()>& gone) {
  const bool was_paused = paused_;
  if (mode == PauseRequest::WAIT && in_flight_ > 0) ReleaseRanks();
  paused_ = true;
  absl::Cleanup undo = [&] {
    if (!was_paused) {
      Release();
    } else if (!held_) {
      Hold();
    }
  };
  if (mode == PauseRequest::ABORT) AbortLocked();
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

int64_t Dispatcher::calls() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(calls_.size());
}

bool Dispatcher::Take(int group, std::vector<WorkQueue>* works) {
  const int begin = options_.lockstep ? 0 : group, end = options_.lockstep ? engines() : group + 1;
  works->assign(engines(), {});
  std::unique_lock lock(mutex_);
  work_changed_.wait(lock, [&] {
    return closed_ ||
           std::any_of(works_.begin() + begin, works_.begin() + end, [](const WorkQueue& w) { return !w.empty(); });
  });
  for (int engine = begin; engine < end; ++engine) {
    WorkQueue& batch = (*works)[engine] = std::exchange(works_[engine], {});
    if (batch.empty()) batch.emplace_back();
    batch.back().set_complete(true);
    batch.back().set_in_flight(in_flight_ > 0);
    batch.back().set_last(closed_);
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
        if (call->begun && call->left_on[engine_of(rank)] > 0) GiveUp(id, call.get(), error());
      }
      continue;
    }
    const auto found = calls_.find(event.call());
    if (found == calls_.end()) continue;  // given up
    Call& call = *found->second;
    if (call.ended) continue;
    if (event.has_error()) {
      GiveUp(event.call(), &call, error());
      continue;
    }
    if (event.has_sequence()) Account(&call, engine_of(rank));
    GenerateReply reply;
    if (event.has_tokens()) {
      *reply.mutable_tokens() = std::move(*event.mutable_tokens());
    } else {
      *reply.mutable_sequence() = std::move(*event.mutable_sequence());
    }
    if (call.origin == Origin::kGuest) {
      if (const absl::Status held = HoldReply(&call, reply); !held.ok()) {
        GiveUp(event.call(), &call, held);
        continue;
      }
    }
    call.sink->Reply(std::move(reply));
    if (call.left == 0) End(&call, absl::OkStatus());
  }
  changed_.notify_all();
}

void Dispatcher::Fail(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  failure_.Update(status);
  if (failure_.ok()) return;
  for (const auto& [id, call] : calls_) GiveUp(id, call.get(), failure_);
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

absl::Status Dispatcher::CheckRoom(int64_t samples, Origin origin) const {
  if (origin == Origin::kGuest) {
    int64_t calls = 1, sequences = samples;
    for (const auto& [id, call] : calls_) {
      if (call->origin != Origin::kGuest) continue;
      ++calls;
      sequences += call->left + call->held_sequences;
    }
    if (calls > max_guest_calls()) {
      return absl::ResourceExhaustedError(absl::StrCat(calls - 1, " requests wait or run; of rollout.max_calls = ",
                                                       options_.max_calls, " a quarter is kept for the run"));
    }
    if (sequences > max_guest_sequences()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the request asks for ", samples, " sequences while those of other requests are ",
                       sequences - samples, ", until their answers are fetched: beside ", capacity(),
                       " that can run, half of rollout.max_waiting = ", options_.max_waiting, " is kept for the run"));
    }
  }
  if (static_cast<int64_t>(calls_.size()) >= options_.max_calls) {
    return absl::ResourceExhaustedError(
        absl::StrCat(calls_.size(), " calls wait or run: rollout.max_calls = ", options_.max_calls, " is reached"));
  }
  if (samples > max_sequences()) {
    return absl::ResourceExhaustedError(absl::StrCat("the call asks for ", samples, " sequences; at most ",
                                                     max_sequences(), " are allowed: the ", capacity(),
                                                     " that can run and rollout.max_waiting = ", options_.max_waiting));
  }
  const int64_t all = in_flight_ + not_begun_;
  const int64_t waiting = std::max<int64_t>(0, all - capacity());
  if (waiting >= options_.max_waiting && all + samples > capacity()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the call asks for ", samples, " sequences while ", all - waiting, " of ", capacity(), " run and ",
                     waiting, " wait: rollout.max_waiting = ", options_.max_waiting, " is reached"));
  }
  return absl::OkStatus();
}

// Its sequences count as in flight from now on, unless it may not begin.
absl::Status Dispatcher::Start(uint64_t id, Call* call) {
  QUARTET_RETURN_IF_ERROR(call->begin());
  call->begun = true;
  call->left_on.resize(engines());
  call->load_on.resize(engines());
  Spread(id, call);
  call->prompts = {};
  call->begin = nullptr;
  not_begun_ -= call->left;
  in_flight_ += call->left;
  work_changed_.notify_all();
  call->sink->Begun();
  if (call->left == 0) End(call, absl::OkStatus());
  return absl::OkStatus();
}

void Dispatcher::End(Call* call, const absl::Status& status) {
  if (call->ended) return;
  call->ended = true;
  if (!status.ok()) ReleaseAll(call);
  call->sink->End(status);
}

// One that the guest has yet to fetch.
absl::Status Dispatcher::HoldReply(Call* call, const GenerateReply& reply) {
  const auto bytes = static_cast<int64_t>(reply.SpaceUsedLong());
  call->held_replies.push_back({bytes, reply.has_sequence()});
  call->held_sequences += reply.has_sequence() ? 1 : 0;
  return HoldBytes(call, bytes);
}

// Where there is no room for them, the guest that has fetched least makes some: an error where it is this one.
absl::Status Dispatcher::HoldBytes(Call* call, int64_t bytes) {
  call->held_bytes += bytes;
  guest_reply_bytes_ += bytes;
  while (guest_reply_bytes_ > options_.max_guest_reply_bytes) {
    auto most = std::make_pair(uint64_t{0}, call);
    for (const auto& [id, other] : calls_) {
      // What has all its replies and hands them on as a whole is on its way already.
      const bool can_end = !other->ended || other->header.stream_tokens();
      if (can_end && other->held_bytes > most.second->held_bytes) most = {id, other.get()};
    }
    const absl::Status status = absl::ResourceExhaustedError(
        absl::StrCat("answers that their clients have yet to fetch take rollout.http.max_bodies_bytes = ",
                     options_.max_guest_reply_bytes, " bytes, this request's ", most.second->held_bytes,
                     " of them: ask for fewer at a time, or read faster"));
    if (most.second == call) return status;
    if (most.second->ended) {
      ReleaseAll(most.second);
      most.second->sink->End(status);
    } else {
      GiveUp(most.first, most.second, status);
    }
  }
  return absl::OkStatus();
}

void Dispatcher::ReleaseReplies(Call* call, size_t count) {
  for (count = std::min(count, call->held_replies.size()); count > 0; --count) {
    const Call::HeldReply& reply = call->held_replies.front();
    call->held_bytes -= reply.bytes;
    call->held_sequences -= reply.is_sequence ? 1 : 0;
    guest_reply_bytes_ -= reply.bytes;
    call->held_replies.pop_front();
  }
}

void Dispatcher::ReleaseAll(Call* call) {
  guest_reply_bytes_ -= call->held_bytes;
  call->held_bytes = 0;
  call->held_sequences = 0;
  call->held_replies.clear();
}

// Of a piece of work of `cost` tokens. That of its affinity is kept while what is ahead of it there is not much more
// than elsewhere: to begin on another one costs the prompt's tokens, to wait a share of what is ahead.
int Dispatcher::EngineFor(uint64_t affinity, double cost) const {
  const auto idlest = static_cast<int>(std::min_element(load_.begin(), load_.end()) - load_.begin());
  if (affinity == 0) return idlest;
  const auto usual = static_cast<int>(affinity % static_cast<uint64_t>(engines()));
  return load_[usual] <= 2 * load_[idlest] + kMostAhead * cost ? usual : idlest;
}

// The longest prompts first, each to the engine with the least to do, or to that of the call's affinity. Samples of one
// prompt stay together, to share its cache, unless there are too few prompts to keep all engines busy.
void Dispatcher::Spread(uint64_t id, Call* call) {
  const SamplingParams& sampling = call->header.sampling();
  std::vector<Prompt>& prompts = call->prompts;
  const bool few = static_cast<int64_t>(prompts.size()) < int64_t{4} * engines() && call->header.affinity() == 0;
  const int32_t pieces = few ? std::min(sampling.n_samples(), engines()) : 1;
  struct Piece {
    Prompt* prompt;
    int32_t first;
    int32_t samples;
    double cost;
  };
  std::vector<Piece> tasks;
  for (Prompt& prompt : prompts) {
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
    const int engine = EngineFor(call->header.affinity(), task.cost);
    load_[engine] += task.cost;
    call->load_on[engine] += task.cost;
    call->left_on[engine] += task.samples;
    if (tokens[engine] == 0 || tokens[engine] + task.prompt->ids_size() >= kWorkTokens) {
      tokens[engine] = 0;
      CallPart& part = *works_[engine].emplace_back().add_parts();
      part.set_call(id);
      *part.mutable_sampling() = sampling;
      part.set_stream_tokens(call->header.stream_tokens());
    }
    tokens[engine] += task.prompt->ids_size() + 1;
    GenerateTask& message = *works_[engine].back().mutable_parts(0)->add_tasks();
    if (pieces == 1) {
      *message.mutable_prompt() = std::move(*task.prompt);
    } else {
      *message.mutable_prompt() = *task.prompt;
    }
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

// Ends the call early. What is left of it counts no more, even while its client, which may read slowly or never, is
// told. Under the lock.
void Dispatcher::GiveUp(uint64_t id, Call* call, const absl::Status& status) {
  if (!call->begun) {
    not_begun_ -= std::exchange(call->left, 0);
  } else {
    for (int engine = 0; engine < engines(); ++engine) {
      if (call->left_on[engine] > 0) WorkFor(engine).add_cancel(id);
      while (call->left_on[engine] > 0) Account(call, engine);
    }
  }
  End(call, status);
  changed_.notify_all();
}

// A message for `engine` to which further work can be added. Under the lock.
RankWork& Dispatcher::WorkFor(int engine) {
  WorkQueue& works = works_[engine];
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

void Dispatcher::ReleaseRanks() {
  if (held_) {
    for (int engine = 0; engine < engines(); ++engine) WorkFor(engine).set_release(true);
  }
  held_ = false;
}

// Calls that came during the pause begin, in their order.
void Dispatcher::Release() {
  ReleaseRanks();
  paused_ = false;
  for (const auto& [id, call] : calls_) {
    if (call->begun || call->ended) continue;
    if (const absl::Status status = Start(id, call.get()); !status.ok()) GiveUp(id, call.get(), status);
  }
}

}  // namespace quartet
