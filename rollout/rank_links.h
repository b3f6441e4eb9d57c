// Between the leader's dispatcher and the ranks: work there, answers back. LibTorch-free.
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "core/service/ranks/group/rank_group.h"
#include "core/service/ranks/rank_context.h"
#include "rollout/dispatcher.h"
#include "rollout/rank_worker.h"

namespace quartet {

class RankLinks {
 public:
  // All outlive it.
  RankLinks(const RankContext& context, RankGroup& group, RankWorker& worker, Dispatcher& dispatcher)
      : context_(context), group_(group), worker_(worker), dispatcher_(dispatcher) {}
  // Waits for its threads, which end once dispatcher and worker are closed and the group has stopped.
  ~RankLinks();

  // On the leader, after all ranks have met.
  absl::Status Start();
  // Once the dispatcher is closed: waits until this rank has done its last work, so that it may leave the others. Any
  // thread.
  void AwaitEnd();

 private:
  void Supply(int group);
  void Listen(int rank);

  const RankContext& context_;
  RankGroup& group_;
  RankWorker& worker_;
  Dispatcher& dispatcher_;
  std::vector<std::shared_ptr<RankPipe>> pipes_;  // by rank; none to the leader itself
  std::vector<std::thread> threads_;
  std::mutex work_mutex_;
  std::thread work_;  // guarded by work_mutex_
};

}  // namespace quartet
