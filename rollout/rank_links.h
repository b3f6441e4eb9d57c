// Between the leader's dispatcher and the ranks: work there, answers back, as events of the ranks' lanes.
// LibTorch-free.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/time/deadline.h"
#include "core/service/ranks/group/rank_group.h"
#include "rollout/calls/dispatcher.h"
#include "rollout/rank_worker.h"

namespace quartet {

class RankLinks {
 public:
  // Registers with `group`. All outlive it.
  RankLinks(RankGroup& group, RankWorker& worker, Dispatcher& dispatcher);
  // Waits for its threads, which end once dispatcher and worker are closed.
  ~RankLinks();

  // On every rank, once, after all have met.
  void Start();
  // Once the leader's dispatcher is closed: waits until this rank has done its last work, so that it may leave the
  // others, but not for longer.
  void AwaitEnd(const Deadline& until);

 private:
  void Hear(int rank, const std::string& event);
  void Lose(int rank, const std::string& fate);
  void Supply(int group);

  RankGroup& group_;
  RankWorker& worker_;
  Dispatcher& dispatcher_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool working_ = false;  // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace quartet
