// The leader's side of generation: admits calls, spreads their samples over the engines by load, and hands back what
// they answer. Knows neither gRPC nor LibTorch.
//
// An engine is a rank, or several neighbours that do the same (tensor-parallel), of which the first answers for all.
// Work for an engine lies in a queue here until whoever brings it there takes it: for each engine by itself, or, where
// all engines step together, for all at once.
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
#include "rollout/rollout_rank.pb.h"

namespace quartet {

struct DispatcherOptions {
  int ranks = 1;
  int ranks_per_engine = 1;    // divides ranks
  bool lockstep = false;       // all engines step together
  int64_t max_num_seqs = 256;  // that one engine runs
  int64_t max_waiting = 0;     // beyond those that all engines can run; a call that comes before may make it more
};

// Thread safe.
class Dispatcher {
 public:
  using Works = std::deque<RankWork>;

  explicit Dispatcher(const DispatcherOptions& options);
  ~Dispatcher();

  // ---- For calls. `gone` is asked every few milliseconds whether whoever waits has given up.

  class Running;

  // Most sequences of one call: those that all engines can run, and max_waiting.
  int64_t max_sequences() const { return capacity() + options_.max_waiting; }

  // Begins one checked call. Waits while paused; then `begin` is asked whether the call may begin. CANCELLED where the
  // caller has gone. RESOURCE_EXHAUSTED where the call asks for more than max_sequences; or, whatever its size, where
  // max_waiting wait and not all of its sequences can run at once. So a call of many is admitted whenever one of few
  // is, and fewer than 2 max_sequences are in flight.
  absl::StatusOr<std::unique_ptr<Running>> Begin(const GenerateHeader& header, const std::vector<Prompt>& prompts,
                                                 const std::function<absl::Status()>& begin,
                                                 const std::function<bool()>& gone);

  // Begin, and the call to its end: each reply goes to `reply` at once, on this thread; it returns false where nobody
  // takes it.
  absl::Status Generate(const GenerateHeader& header, const std::vector<Prompt>& prompts,
                        const std::function<absl::Status()>& begin, const std::function<bool()>& gone,
                        const std::function<bool(GenerateReply)>& reply);

  // As Rollout.Pause says; returns the number of sequences that are kept.
  absl::StatusOr<int64_t> Pause(PauseRequest::Mode mode, const std::function<bool()>& gone);
  void Resume();
  // Does `work` while no rank makes a forward: paused as it is, or after everything in flight has ended.
  absl::Status Quietly(const std::function<bool()>& gone, const std::function<absl::Status()>& work);

  bool paused() const;

  // ---- For those who bring work to the ranks and their answers back.

  int engines() const { return options_.ranks / options_.ranks_per_engine; }
  int engine_of(int rank) const { return rank / options_.ranks_per_engine; }

  // Sets of engines that step together.
  int groups() const { return options_.lockstep ? 1 : engines(); }
  // Waits until there is work for an engine of `group`. What there is, by engine and in order: a batch for each of the
  // group, if only of an empty message, and nothing for the others. False after Close.
  bool Take(int group, std::vector<Works>* works);

  void Answer(int rank, RankEvents events);

  // All calls, now and later, end with `status`.
  void Fail(const absl::Status& status);
  // Takers return; all calls end.
  void Close();

 private:
  struct Call;

  // Sequences that all engines can run.
  int64_t capacity() const { return engines() * options_.max_num_seqs; }
  absl::StatusOr<int64_t> PauseLocked(std::unique_lock<std::mutex>* lock, PauseRequest::Mode mode,
                                      const std::function<bool()>& gone);
  absl::Status Admit(const GenerateHeader& header, const std::vector<Prompt>& prompts, uint64_t* id);
  void Spread(uint64_t id, const GenerateHeader& header, const std::vector<Prompt>& prompts, Call* call);
  void Account(Call* call, int engine);
  void GiveUp(uint64_t id);
  RankWork& WorkFor(int engine);
  void Hold();
  void Release();
  template <typename Condition>
  absl::Status Wait(std::unique_lock<std::mutex>* lock, const std::function<bool()>& gone, Condition condition);

  const DispatcherOptions options_;
  std::mutex pause_mutex_;  // one Pause, Resume or Quietly at a time
  mutable std::mutex mutex_;
  std::condition_variable changed_;       // for calls and pauses
  std::condition_variable work_changed_;  // for takers
  // Guarded by mutex_.
  std::map<uint64_t, std::shared_ptr<Call>> calls_;
  uint64_t last_call_ = 0;
  std::vector<Works> works_;
  std::vector<double> load_;              // tokens that each engine has to make, at most
  int64_t in_flight_ = 0;                 // sequences
  bool paused_ = false;                   // calls do not begin
  bool held_ = false;                     // ranks make no forwards
  uint64_t hold_ = 0;                     // number of the last hold
  std::vector<uint64_t> holds_answered_;  // by rank
  bool closed_ = false;
  absl::Status failure_;
};

// A call that has begun. What is not finished when it is destroyed is given up. One thread; ends before the dispatcher.
class Dispatcher::Running {
 public:
  ~Running();
  // Waits for replies and returns all that are there; none once every sequence has come. An error ends the call:
  // CANCELLED where the caller has gone.
  absl::StatusOr<std::deque<GenerateReply>> Next(const std::function<bool()>& gone);

 private:
  friend class Dispatcher;
  Running(Dispatcher* dispatcher, uint64_t id, std::shared_ptr<Call> call);

  Dispatcher* const dispatcher_;
  const uint64_t id_;
  const std::shared_ptr<Call> call_;
};

}  // namespace quartet
