// The leader's calls on all ranks: where they wait, and what becomes of those that were sent.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/time/deadline.h"
#include "core/service/ranks/group/own_rank.h"
#include "core/service/ranks/group/rank_group.h"
#include "proto/rank.pb.h"

namespace quartet {

// Thread safe.
class LeaderCalls {
 public:
  // `heartbeat`: the unit of the leader's patience. `name`: of a rank, in messages. What is sent to a rank, in the
  // order of `send`, which does not wait.
  LeaderCalls(int ranks, absl::Duration heartbeat, absl::Duration collective_timeout, OwnRank& own,
              std::function<std::string(int rank)> name, std::function<void(int rank, RankMessage)> send);

  // As RankGroup::Run, of a call that is well made. `broken`: why the ranks cannot work together any more, else OK.
  absl::StatusOr<std::vector<RankOutput>> Run(const std::string& name, const RankMethod& method,
                                              std::vector<RankInput> inputs, const Deadline& deadline,
                                              absl::Status* broken);

  // What comes from a rank: anything; an answer; nothing any more, since it `fate` ("is gone").
  void Heard(int rank);
  void Answer(int rank, LanePart answer);
  void Lose(int rank, const std::string& fate);

  // Calls that have not begun end with `status`, now and later. The first counts.
  void Refuse(const absl::Status& status);
  // All do, whatever their handlers do.
  void End(const absl::Status& status);

 private:
  struct Call;
  using Lock = std::unique_lock<std::mutex>;

  absl::Status CheckOpen(const Call& call) const;
  absl::Status AwaitTurn(const Call& call, Lock& lock);
  absl::Status AwaitRanks(const Call& call, Lock& lock);
  absl::Status AwaitBegin(const std::shared_ptr<Call>& call, Lock& lock);
  void AwaitEnd(Call& call, Lock& lock);
  bool Begin(const std::shared_ptr<Call>& call);
  void Take(Call& call, int rank, absl::StatusOr<RankOutput> output);
  std::string NamesOf(const std::vector<int>& ranks) const;
  std::string Unanswered(const Call& call) const;
  absl::Status ErrorOf(const Call& call) const;

  const int ranks_;
  const absl::Duration heartbeat_, collective_timeout_;
  OwnRank& own_;
  const std::function<std::string(int)> name_;
  const std::function<void(int, RankMessage)> send_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<const Call*> queue_;                   // those of the executor threads; the first runs, or is about to
  std::map<uint64_t, std::shared_ptr<Call>> sent_;  // by number, until Run returns
  uint64_t last_number_ = 0;
  std::vector<Deadline::Clock::time_point> heard_;  // when last, by rank
  absl::Status refusal_, end_;
};

}  // namespace quartet
