// One rank's part of generation: applies the leader's work to the engine and makes its forwards. Knows neither gRPC nor
// LibTorch.
//
// Ranks that step together have no one who leads them from forward to forward. While there is something to compute,
// they agree before each forward on the batches of work that have come to all of them; else each applies the next batch
// by itself, and nobody waits in a collective. Since they get the same batches, they make the same forwards.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "rollout/engine.h"
#include "rollout/rollout_rank.pb.h"

namespace quartet {

class RankWorker {
 public:
  // Of ranks that do the same (tensor-parallel) one answers; of the others only holds and the engine's errors are.
  explicit RankWorker(bool answers) : answers_(answers) {}

  // ---- Any thread.

  void Put(RankWork work);
  // No more work comes.
  void Close();
  // Waits until there is something to Do; false after Close.
  bool Wait();

  struct Result {
    std::vector<RankEvents> answers;  // messages of bounded size
    absl::Status status;              // the engine's error, which is among the answers too
  };
  // On the engine's thread: applies what has come, and makes a forward if there is something to compute. After an error
  // nothing is left running.
  Result Do(RolloutEngine& engine);

 private:
  std::deque<RankWork> TakeBatches(int64_t count);

  const bool answers_;
  bool held_ = false;
  bool pending_ = false;  // this rank, or one that steps together with it, has sequences, as far as is known

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<RankWork> works_;
  int64_t batches_ = 0;  // that have come whole
  bool busy_ = false;    // Do has something to compute even without work
  bool closed_ = false;
};

}  // namespace quartet
