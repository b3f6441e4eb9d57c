// The leader's side of generation: admits calls, spreads their samples over the engines by load, and hands back what
// they answer. Knows neither gRPC nor LibTorch.
//
// An engine is a rank, or several neighbours that do the same (tensor-parallel), of which the first answers for all.
// Work for an engine lies in a queue here until whoever brings it there takes it: for each engine by itself, or, where
// all engines step together, for all at once.
//
//   call       one Generate: prompts, and so many samples of each
//   sequence   one sample of one prompt
//   engine     ranks that make one forward together; `ranks_per_engine` of them
//   group      engines that step together: all with lockstep, else each by itself
//   work       what an engine is told next: sequences to add, calls to end, a hold
//   hold       a time in which no rank makes a forward, what is in flight kept
//   guest      a call that is not the run's: by HTTP, or by another client
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/rollout.pb.h"
#include "rollout/calls/rollout_rank.pb.h"

namespace quartet {

struct DispatcherOptions {
  int ranks = 1;
  int ranks_per_engine = 1;    // divides ranks
  bool lockstep = false;       // all engines step together
  int64_t max_num_seqs = 256;  // that one engine runs
  int64_t max_waiting = 0;     // beyond those that all engines can run; a call that comes before may make it more
  int64_t max_calls = 1024;    // at once, whether they wait or run
  // Of memory, of the replies to guests that these have not fetched.
  int64_t max_guest_reply_bytes = int64_t{256} << 20;
};

// Takes what one call is answered, in its order. Called under the dispatcher's lock, from any thread: it must not wait,
// and not ask the dispatcher for anything.
class CallSink {
 public:
  virtual ~CallSink() = default;
  // The call has begun: nothing is paused, and it may. Before any reply.
  virtual void Begun() {}
  virtual void Reply(GenerateReply reply) = 0;
  // Last: OK behind the last sequence, else why there will be no more. Once, but for a guest that streams: after OK
  // comes an error where its replies that are not fetched are given up.
  virtual void End(const absl::Status& status) = 0;
};

// Thread safe.
class Dispatcher {
 public:
  using WorkQueue = std::deque<RankWork>;

  explicit Dispatcher(const DispatcherOptions& options);
  ~Dispatcher();

  // ---- For calls: no thread waits here for one.

  class Admission;

  // Most sequences of one call: those that all engines can run, and max_waiting.
  int64_t max_sequences() const { return capacity() + options_.max_waiting; }
  // The same of all guests together, and their calls.
  int64_t max_guest_sequences() const { return capacity() + options_.max_waiting / 2; }
  int64_t max_guest_calls() const { return options_.max_calls - options_.max_calls / 4; }

  // Takes one checked call, or refuses it. It begins at once, or as soon as nothing is paused: `begin` is asked then,
  // under the lock, whether it may. RESOURCE_EXHAUSTED where max_calls are there, where the call asks for more than
  // max_sequences, or, whatever its size, where max_waiting wait and not all of its sequences can run at once; those
  // of calls that have not begun count alike. So a call of many is taken whenever one of few is, and fewer than
  // 2 max_sequences are there. An error of `begin` is returned, or ends the call where it comes later. `sink` outlives
  // what is returned.
  //
  // Guests are refused earlier: where they have three quarters of max_calls, or would have more sequences than can run
  // and half of max_waiting. So the run, which is none, always finds room. A guest's sequence counts until its reply is
  // fetched (Admission::Fetched). Where replies that guests have not fetched take more than max_guest_reply_bytes, the
  // call that has most of them ends with RESOURCE_EXHAUSTED.
  enum class Origin { kRun, kGuest };
  absl::StatusOr<std::unique_ptr<Admission>> Begin(const GenerateHeader& header, std::vector<Prompt> prompts,
                                                   std::function<absl::Status()> begin, CallSink* sink,
                                                   Origin origin = Origin::kRun);

  // ---- For control. `gone` is asked every now and then whether whoever waits has given up: CANCELLED then.

  // Ends what is in flight, as Pause(ABORT) does first, without waiting: whatever waits for it goes on.
  void AbortInFlight();
  // As Rollout.Pause says; returns the number of sequences that are kept.
  absl::StatusOr<int64_t> Pause(PauseRequest::Mode mode, const std::function<bool()>& gone);
  void Resume();
  // Does `work` while no rank makes a forward, with what is in flight kept; a pause that is there already stays.
  absl::Status Quietly(const std::function<bool()>& gone, const std::function<absl::Status()>& work);

  bool paused() const;
  // Calls that wait or run.
  int64_t calls() const;

  // ---- For those who bring work to the ranks and their answers back.

  int engines() const { return options_.ranks / options_.ranks_per_engine; }
  int engine_of(int rank) const { return rank / options_.ranks_per_engine; }

  // Sets of engines that step together.
  int groups() const { return options_.lockstep ? 1 : engines(); }
  // Waits until there is work for an engine of `group`. What there is, by engine and in order: a batch for each of the
  // group, if only of an empty message, and nothing for the others. False after Close: the batch is the last one.
  bool Take(int group, std::vector<WorkQueue>* works);

  void Answer(int rank, RankEvents events);

  // All calls, now and later, end with `status`.
  void Fail(const absl::Status& status);
  // Takers get the last batch; all calls end.
  void Close();

 private:
  struct Call;

  // Sequences that all engines can run.
  int64_t capacity() const { return engines() * options_.max_num_seqs; }
  absl::StatusOr<int64_t> PauseLocked(std::unique_lock<std::mutex>* lock, PauseRequest::Mode mode,
                                      const std::function<bool()>& gone);
  absl::Status CheckRoom(int64_t samples, Origin origin) const;
  void AbortLocked();
  absl::Status Start(uint64_t id, Call* call);
  void Spread(uint64_t id, Call* call);
  int EngineFor(uint64_t affinity, double cost) const;
  void End(Call* call, const absl::Status& status);
  void Account(Call* call, int engine);
  absl::Status HoldReply(Call* call, const GenerateReply& reply);
  absl::Status HoldBytes(Call* call, int64_t bytes);
  void ReleaseReplies(Call* call, size_t count);
  void ReleaseAll(Call* call);
  void GiveUp(uint64_t id, Call* call, const absl::Status& status);
  RankWork& WorkFor(int engine);
  void Hold();
  void ReleaseRanks();
  void Release();
  template <typename Condition>
  absl::Status Wait(std::unique_lock<std::mutex>* lock, const std::function<bool()>& gone, Condition condition);

  const DispatcherOptions options_;
  std::mutex pause_mutex_;  // one Pause, Resume or Quietly at a time
  mutable std::mutex mutex_;
  std::condition_variable changed_;       // for control
  std::condition_variable work_changed_;  // for takers
  // Guarded by mutex_.
  std::map<uint64_t, std::unique_ptr<Call>> calls_;
  uint64_t last_call_ = 0;
  std::vector<WorkQueue> works_;
  std::vector<double> load_;              // tokens that each engine has to make, at most
  int64_t in_flight_ = 0;                 // sequences of calls that have begun
  int64_t not_begun_ = 0;                 // sequences of the others
  int64_t guest_reply_bytes_ = 0;         // that are not fetched
  bool paused_ = false;                   // calls do not begin
  bool held_ = false;                     // ranks make no forwards
  uint64_t hold_ = 0;                     // number of the last hold
  std::vector<uint64_t> holds_answered_;  // by rank
  bool closed_ = false;
  absl::Status failure_;
};

// The place of a call. Its end gives up what is not finished: the sink is not called any more. It ends before the
// dispatcher, and on no thread that the sink is called on.
class Dispatcher::Admission {
 public:
  ~Admission();

  // The client has `replies` more of those that the sink was given, in their order. The rest is fetched with the end of
  // this. Of a call that has ended with an error nothing is left to be fetched.
  void Fetched(size_t replies);
  // What is made of its replies for the client takes so many bytes more: until the end of this, or, of a call that
  // streams tokens, until the first reply that is not fetched is. RESOURCE_EXHAUSTED where there is no room for them:
  // it is to end now.
  absl::Status Hold(int64_t bytes);

 private:
  friend class Dispatcher;
  Admission(Dispatcher* dispatcher, uint64_t id) : dispatcher_(dispatcher), id_(id) {}

  Dispatcher* const dispatcher_;
  const uint64_t id_;
};

}  // namespace quartet
