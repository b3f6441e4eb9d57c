// One call on all ranks of a group, as the leader makes it (proto/rank.proto).
#pragma once

#include <grpcpp/client_context.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/service/ranks/group/own_rank.h"
#include "core/service/ranks/group/rank_group.h"
#include "core/service/rpc/message_size.h"
#include "proto/rank.grpc.pb.h"

namespace quartet {

// The rest is for the message around an item.
inline constexpr size_t kMaxRankItemBytes = kMaxMessageBytes - 4096;
// Marks an error of Rank.Execute that the handler returned: the connection and the rank are well.
inline constexpr char kHandlerError[] = "quartet-handler-error";
inline constexpr char kAgreedError[] = "agreed";  // its value where the error is so marked

// The threads that talk to the ranks, and the one that does the leader's own part, meet in it when all ranks are ready,
// when it is the turn of a collective call on all of them, and at the end.
class LeaderCall {
 public:
  using Stubs = std::vector<std::unique_ptr<Rank::Stub>>;

  // `stubs` are of ranks 1 and up, `names` of all. The call draws its number from `last_number` once all ranks are
  // ready. `collective_timeout` is the ranks'. All references outlive the call.
  LeaderCall(const std::string& name, const RankMethod& method, std::vector<RankInput> inputs, const Deadline& deadline,
             absl::Duration collective_timeout, const Stubs& stubs, const std::vector<std::string>& names, OwnRank& own,
             std::atomic<uint64_t>& last_number);

  // As RankGroup::Run. Once.
  absl::StatusOr<std::vector<RankOutput>> Run();

  // After Run: why the ranks cannot work together any more; OK where they can.
  const absl::Status& broken() const { return broken_; }

 private:
  int ranks() const { return static_cast<int>(names_.size()); }
  bool WaitUntilAllReady(int rank);
  bool WaitUntilAllsTurn(int rank);
  bool AwaitOwnTurn(HandlerRun& run);
  bool CutOff();
  void RunOnSelf();
  void RunOn(int rank);
  void Fail(int rank);
  void CancelOthers();
  void End(int rank, absl::StatusOr<RankOutput> output, bool lost);
  std::string RanksWithout(const std::vector<bool>& of) const;
  absl::Status FindError() const;
  bool StayedInStep() const;

  const std::string& name_;
  const RankMethod& method_;
  const bool together_;  // the handlers of several ranks need each other
  const Deadline deadline_;
  const Deadline confirmed_by_;  // by all ranks, that they have their parts
  const absl::Duration collective_timeout_;
  const Stubs& stubs_;
  const std::vector<std::string>& names_;
  OwnRank& own_;
  std::atomic<uint64_t>& last_number_;
  std::vector<RankInput> inputs_;
  absl::Status broken_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_ while Run's threads run.
  int ready_ = 0;
  int turns_ = 0;
  int ended_ = 0;
  bool failed_ = false;
  bool gone_ = false;      // all were ready: the call has its number
  bool begun_ = false;     // it was the turn of a collective call on all ranks
  bool lost_ = false;      // a rank could not be reached any more
  bool cut_ = false;       // by EndCalls
  bool given_up_ = false;  // the deadline has come
  uint64_t number_ = 0;
  std::vector<int> failures_;                 // ranks, in the order in which they failed
  Deadline hangs_after_ = Deadline::Never();  // once begun_: the ranks wait for each other in vain
  Deadline grace_end_ = Deadline::Never();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
  std::vector<bool> is_ready_;
  std::vector<bool> knows_number_;  // what it says proves that it has received `go`
  std::vector<bool> has_answered_;
  std::vector<absl::StatusOr<RankOutput>> outputs_;
};

}  // namespace quartet
