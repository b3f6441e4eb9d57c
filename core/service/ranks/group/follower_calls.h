// The leader's calls on a follower, which runs and answers each.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/time/deadline.h"
#include "core/service/ranks/group/own_rank.h"
#include "core/service/ranks/group/rank_group.h"
#include "proto/rank.pb.h"

namespace quartet {

// Thread safe, but for Take.
class FollowerCalls {
 public:
  // `send` to the leader may wait.
  FollowerCalls(OwnRank& own, std::function<void(RankMessage)> send) : own_(own), send_(std::move(send)) {}

  // What comes over the lane, from the thread that reads it.
  void Take(LanePart work);
  // Whether all are answered by then.
  bool AwaitNone(const Deadline& until);
  // All end with `status`, now and later, whatever their handlers do.
  void End(const absl::Status& status);

 private:
  void Answer(uint64_t call, absl::StatusOr<RankOutput> output);

  OwnRank& own_;
  const std::function<void(RankMessage)> send_;
  std::map<uint64_t, RankInput> arriving_;  // by call

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::set<uint64_t> running_;
  int answering_ = 0;  // whose answer is being sent
  absl::Status end_;
};

}  // namespace quartet
