// One rank's part of generation: applies the leader's work to the engine and makes its forwards. Knows neither gRPC nor
// LibTorch.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "rollout/engine.h"
#include "rollout/rollout_rank.pb.h"

namespace quartet {

class RankWorker {
 public:
  struct Options {
    // Forwards are made only where the work says so.
    bool lockstep = false;
    // Does what the leader does, which answers for it: only holds and the engine's errors are answered here.
    bool mirrors_leader = false;
  };
  explicit RankWorker(const Options& options) : options_(options) {}

  struct Result {
    std::vector<RankEvents> answers;  // messages of bounded size
    absl::Status status;              // the engine's error, which is among the answers too
  };
  // On the engine's thread: applies `works` in their order, and makes each forward that they ask for; where the ranks
  // do not move in lockstep, makes one if there is something to compute. After an error nothing is left running.
  Result Do(RolloutEngine& engine, const std::deque<RankWork>& works);

  // The next Do would make a forward even without work. Any thread.
  bool busy() const { return busy_; }

 private:
  const Options options_;
  bool held_ = false;
  std::atomic<bool> busy_ = false;
};

// Work that has come and is not done yet. Thread safe.
class WorkInbox {
 public:
  void Put(RankWork work);
  // As Dispatcher::Take.
  bool Take(bool wait, std::deque<RankWork>* works);
  void Close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<RankWork> works_;
  bool closed_ = false;
};

}  // namespace quartet
