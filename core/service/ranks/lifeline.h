// How the ranks of a service learn of each other's loading and ends. gRPC-free.
//
// Between the leader and each other rank a pipe is open for as long as both live. Who ends says so on it and why; a
// pipe that ends without that tells that the process at its other end, or its host, is gone. The leader passes on what
// all must know.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "core/service/ranks/group/rank_group.h"
#include "proto/rank.pb.h"

namespace quartet {

// Thread safe.
class Lifeline {
 public:
  struct Callbacks {
    // Another rank is gone, or says that the ranks cannot work together any more. From any thread, not once this rank
    // leaves; it may take its time, and may call Announce.
    std::function<void(const absl::Status&)> on_broken;
    // The same of another rank that was told to end.
    std::function<void(const std::string& why)> on_leave;
  };
  // Registers with `group`, which outlives it. Before the rank's server listens.
  Lifeline(RankGroup& group, Callbacks callbacks);
  ~Lifeline();  // as Leave
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  // After group.Start.
  absl::Status Start();

  // How loading went on this rank. Once, after Start.
  void ReportLoad(const absl::Status& status);
  // Until all ranks have reported that they have loaded. Else the first of their errors, the same on all ranks
  // (ABORTED); what has become of the ranks meanwhile; or CANCELLED once this rank leaves.
  absl::Status WaitUntilAllLoaded();

  // The other ranks hear that this one is about to end, and why. The first call counts.
  void Announce(const std::string& why, bool broken);
  // Announce, and waits until they have heard it: half a second at most. Not from a callback.
  void Leave(const std::string& why, bool broken);

 private:
  // The pipe to one rank.
  struct Line {
    RankPipe* pipe = nullptr;             // while it is open
    std::vector<LifelineMessage> unsent;  // from before that
  };

  void Open(int rank, RankPipe& pipe);
  void Follow(int rank, RankPipe& pipe);
  void Handle(const LifelineMessage& message);
  void Say(int rank, const LifelineMessage& message);
  void SayToAll(const LifelineMessage& message);
  void AddLoaded();
  void AddLoadError(const std::string& error);

  RankGroup& group_;
  const Callbacks callbacks_;
  std::vector<std::thread> threads_;  // of the leader, one a pipe
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::vector<Line> lines_;  // by rank; of a follower that of rank 0 alone
  int loaded_ = 0;           // ranks; on the leader
  bool all_loaded_ = false;
  std::string load_error_;  // the first of any rank, as the leader knows it
  absl::Status broken_;
  bool leaving_ = false;
};

}  // namespace quartet
