#include "core/service/ranks/group/rank_group.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/running_wait.h"
#include "core/base/trace.h"
#include "core/service/ranks/group/follower_calls.h"
#include "core/service/ranks/group/lane_ends.h"
#include "core/service/ranks/group/lane_join.h"
#include "core/service/ranks/group/lane_parts.h"
#include "core/service/ranks/group/leader_calls.h"
#include "core/service/ranks/group/liveness.h"
#include "core/service/ranks/group/own_rank.h"
#include "core/service/ranks/group/serial_thread.h"
#include "core/service/rpc/end_call.h"
#include "core/service/rpc/status_conversion.h"
#include "core/service/rpc/wire_text.h"
#include "proto/rank.grpc.pb.h"

namespace quartet {
namespace {

// For a lane's first message to come.
constexpr int kJoinHeartbeats = 10;

class RankGroupImpl final : public RankGroup, private Rank::Service {
 public:
  RankGroupImpl(const RankContext& context, Callbacks callbacks, absl::Duration heartbeat)
      : context_(context),
        callbacks_(std::move(callbacks)),
        heartbeat_(heartbeat),
        calls_(
            context.world_size, heartbeat, context.collective_timeout, own_,
            [this](int rank) { return LockedNameOf(rank); },
            [this](int rank, RankMessage message) { Tell(rank, std::move(message)); }),
        own_calls_(own_, [this](RankMessage message) { Write(0, std::move(message)); }),
        joined_(context.world_size),
        lanes_(context.world_size),
        left_(context.world_size),
        liveness_(context.world_size, heartbeat) {
    joined_[context.rank] = context.endpoint;
    if (context.world_size == 1) return;
    const std::lock_guard lock(mutex_);
    Call([this] { Watch(); });
  }

  ~RankGroupImpl() override { Stop(); }

  int rank() const override { return context_.rank; }
  int world_size() const override { return context_.world_size; }
  std::vector<std::string> endpoints() const override {
    const std::lock_guard lock(mutex_);
    return joined_;
  }

  void Register(const std::string& method, Kind kind, Handler handler) override {
    if (kind != Kind::kConcurrent) {
      handler = [method, handler = std::move(handler)](const RankInput& input) {
        const TraceScope span(method);
        return handler(input);
      };
    }
    own_.Register(method, kind, std::move(handler));
  }

  void OnEvents(Events events) override { events_ = std::move(events); }

  absl::StatusOr<std::vector<RankOutput>> Run(const std::string& method, std::vector<RankInput> inputs,
                                              const Deadline& deadline) override {
    if (!is_leader()) return absl::FailedPreconditionError(absl::StrCat(method, ": only rank 0 starts calls"));
    const RankMethod* found = own_.Find(method);
    if (found == nullptr) return absl::InternalError(absl::StrCat("no method '", method, "' is registered"));
    if (static_cast<int>(inputs.size()) != world_size()) {
      return absl::InternalError(absl::StrCat(method, ": ", inputs.size(), " inputs for ", world_size(), " ranks"));
    }
    if (std::unique_lock lock(mutex_); !welcome_) {
      return absl::FailedPreconditionError(absl::StrCat(method, ": the ranks are not connected yet"));
    }
    for (int r = 0; r < world_size(); ++r) {
      QUARTET_RETURN_IF_ERROR(
          Prefixed(method, CheckSizes(absl::StrCat("for rank ", r), inputs[r].header, inputs[r].items)));
    }
    absl::Status broken;
    absl::StatusOr<std::vector<RankOutput>> outputs = calls_.Run(method, *found, std::move(inputs), deadline, &broken);
    if (!broken.ok()) Break(broken);
    return outputs;
  }

  void SendEvent(int rank, std::string event) override {
    RankMessage message;
    message.set_event(std::move(event));
    Write(rank, std::move(message));
  }

  void Break(const absl::Status& status) override {
    if (broken_.exchange(true)) return;
    calls_.Refuse(Unusable(status.message()));
    if (callbacks_.on_broken) callbacks_.on_broken(status);
  }

  absl::Status RunHere(const std::function<absl::Status()>& work) override { return own_.RunHere(work); }

  grpc::Service* service() override { return static_cast<Rank::Service*>(this); }

  absl::Status Start(std::shared_ptr<grpc::Channel> leader, absl::Duration timeout) override {
    if (!is_leader()) Join(leader);
    std::unique_lock lock(mutex_);
    if (is_leader()) Welcome();
    WaitWhileRunning(changed_, lock, Deadline::In(timeout), [this] { return welcome_ || !lost_.ok() || leaving_; });
    if (!lost_.ok()) return lost_;
    if (leaving_) return absl::CancelledError("this rank is stopping");
    if (welcome_) return absl::OkStatus();
    std::vector<int> missing;
    for (int r = 1; r < world_size() && is_leader(); ++r) {
      if (joined_[r].empty()) missing.push_back(r);
    }
    return absl::DeadlineExceededError(
        absl::StrCat("not all ranks came within ",
                     absl::FormatDuration(timeout > absl::Seconds(1) ? absl::Ceil(timeout, absl::Seconds(1)) : timeout),
                     is_leader() ? ": missing: rank " : ", as far as rank 0 knows", absl::StrJoin(missing, ", rank ")));
  }

  void ReportLoad(const absl::Status& status) override {
    RankMessage message;
    if (status.ok()) {
      message.set_loaded(true);
    } else {
      message.set_load_error(WireText(status.message()));
    }
    const std::lock_guard lock(mutex_);
    if (is_leader()) return TakeLoad(message);
    Say(0, std::move(message));
  }

  absl::Status WaitUntilAllLoaded() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return loaded_.has_value() || !lost_.ok() || leaving_; });
    if (loaded_.has_value() && (!loaded_->ok() || lost_.ok())) return *loaded_;
    return lost_.ok() ? absl::CancelledError("this rank is stopping") : lost_;
  }

  void Announce(const std::string& why, bool broken) override {
    RankMessage message;
    message.mutable_leaves()->set_why(WireText(why));
    message.mutable_leaves()->set_broken(broken);
    const std::lock_guard lock(mutex_);
    if (std::exchange(leaving_, true)) return;
    SayToAll(message);
    changed_.notify_all();
  }

  bool AwaitCalls(const Deadline& until) override { return own_calls_.AwaitNone(until); }

  void EndCalls(const absl::Status& status) override {
    calls_.End(status);
    own_calls_.End(status);
  }

  void CloseLanes(const Deadline& until) override {
    Announce("it is not used any more", /*broken=*/false);
    std::unique_lock lock(mutex_);
    if (is_leader()) {
      // Who answers this has read what went before it.
      SayToAll(ask_);
      WaitWhileRunning(changed_, lock, until, [this] {
        return absl::c_none_of(lanes_, [](const LaneEnd& lane) { return lane.unanswered > 0; });
      });
    }
    if (follower_ != nullptr && lanes_[0].cancel) {
      Say(0, RankMessage());  // its last: the leader ends the lane then
      changed_.wait_until(lock, until.time(), [this] { return !lanes_[0].cancel; });
    }
    const absl::Status end = absl::UnavailableError("rank 0 is stopping");
    for (const LaneEnd& lane : lanes_) {
      if (lane.cancel) lane.cancel(end);
    }
    for (const auto& [call, heartbeats] : without_join_) EndCall(call, end);
    lock.unlock();
    if (follower_ != nullptr && follower_->reader.joinable()) follower_->reader.join();
  }

  void Stop() override {
    calls_.Refuse(absl::UnavailableError("the service is stopping"));
    CloseLanes(Deadline::In(absl::ZeroDuration()));
    own_.Stop();
    std::unique_lock lock(mutex_);
    std::vector<std::thread> callbacks = std::exchange(running_callbacks_, {});
    lock.unlock();
    for (std::thread& callback : callbacks) callback.join();
  }

 private:
  std::string NameOf(int rank) const {
    return absl::StrCat("rank ", rank, joined_[rank].empty() ? "" : absl::StrCat(" (", joined_[rank], ")"));
  }

  std::string LockedNameOf(int rank) const {
    const std::lock_guard lock(mutex_);
    return NameOf(rank);
  }

  static absl::Status Unusable(absl::string_view why) {
    return absl::UnavailableError(absl::StrCat("the ranks cannot work together any more: ", why));
  }

  void Tell(int rank, RankMessage message) {
    const std::lock_guard lock(mutex_);
    Say(rank, std::move(message));
  }

  void Heard(int from) {
    const std::lock_guard lock(mutex_);
    liveness_.Heard(from);
  }

  // As Tell, without a change of threads where nothing else is being written: may wait until the other rank reads.
  void Write(int rank, RankMessage message) {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<Outbox> outbox = lanes_[rank].outbox;
    lock.unlock();
    if (outbox != nullptr) outbox->Take(std::move(message));
  }

  // Under the lock, as what follows. Waits for nobody.
  void Say(int rank, RankMessage message) {
    if (lanes_[rank].outbox == nullptr) return;
    if (message.has_ask()) ++lanes_[rank].unanswered;
    lanes_[rank].outbox->Put(std::move(message));
  }
  void SayToAll(const RankMessage& message) {
    for (int r = 0; r < world_size(); ++r) Say(r, message);
  }

  // Once all have joined.
  void Welcome() {
    changed_.notify_all();
    if (welcome_ || std::count(joined_.begin() + 1, joined_.end(), "") > 0) return;
    RankMessage message;
    message.mutable_welcome()->mutable_endpoints()->Assign(joined_.begin(), joined_.end());
    SayToAll(message);
    welcome_ = true;
  }

  // Of one rank, on the leader; of all, on a follower.
  void TakeLoad(const RankMessage& message) {
    if (message.has_loaded() && is_leader() && ++ranks_loaded_ < world_size()) return;
    if (loaded_.has_value()) return;
    loaded_ = message.has_loaded() ? absl::OkStatus() : absl::AbortedError(message.load_error());
    if (is_leader()) SayToAll(message);
    changed_.notify_all();
  }

  // Runs a callback of this rank, which may take its time.
  void Call(std::function<void()> callback) { running_callbacks_.emplace_back(std::move(callback)); }

  // `said`: another rank has told so.
  void Lose(const absl::Status& status, bool said) {
    Call([this, status, said] {
      if (said) {
        Break(status);
      } else if (callbacks_.on_lost) {
        callbacks_.on_lost(status);
      }
      const std::lock_guard lock(mutex_);
      lost_.Update(status);
      changed_.notify_all();
    });
  }

  // Another rank has said that it ends.
  void TakeLeave(int rank, const LaneLeaves& leaves) {
    if (leaves.broken()) calls_.Refuse(Unusable(leaves.why()));
    const std::lock_guard lock(mutex_);
    left_[rank] = true;
    if (leaving_) return;
    if (leaves.broken()) return Lose(absl::UnavailableError(leaves.why()), /*said=*/true);
    const bool passed_on = absl::StrContains(leaves.why(), " (of rank ");
    Call([this, why = passed_on ? leaves.why() : absl::StrCat(leaves.why(), " (of rank ", rank, ")")] {
      if (callbacks_.on_leave) callbacks_.on_leave(why);
    });
  }

  // Sees which ranks say nothing any more, and on the leader asks them to.
  void Watch() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, absl::ToChronoNanoseconds(heartbeat_), [this] { return leaving_; })) {
      liveness_.Heartbeat();
      for (int r = 0; r < world_size(); ++r) {
        if (!lanes_[r].cancel || left_[r]) continue;
        if (liveness_.IsTooLong(r)) {
          GiveUp(r);
        } else if (is_leader()) {
          Say(r, ask_);
        }
      }
      for (auto& [call, heartbeats] : without_join_) {
        if (++heartbeats == kJoinHeartbeats) {
          EndCall(call, absl::DeadlineExceededError(absl::StrCat("no `join` came within ",
                                                                 absl::FormatDuration(kJoinHeartbeats * heartbeat_))));
        }
      }
    }
  }

  // On the leader the rank hears it, should it go on. A follower says it as it leaves.
  void GiveUp(int rank) {
    const std::string why = absl::StrCat(NameOf(rank), " ", liveness_.FateOf(rank));
    left_[rank] = true;
    Lose(absl::UnavailableError(why), /*said=*/true);
    if (is_leader()) lanes_[rank].cancel(absl::DeadlineExceededError(why));
  }

  // `end`: what the transport says of it, or why this rank was refused or given up.
  void EndLane(int rank, const absl::Status& end) {
    std::string fate;
    {
      const std::lock_guard lock(mutex_);
      fate = liveness_.FateOf(rank);
      lanes_[rank] = {};
      if (!leaving_ && !left_[rank]) {
        const bool refused =
            absl::IsFailedPrecondition(end) || absl::IsAlreadyExists(end) || absl::IsInvalidArgument(end);
        const bool given_up = absl::IsDeadlineExceeded(end);
        const std::string why(end.message());
        Lose(refused    ? absl::FailedPreconditionError(absl::StrCat("refused by rank 0: ", why))
             : given_up ? absl::UnavailableError(absl::StrCat("given up by rank 0: ", why))
                        : absl::UnavailableError(absl::StrCat(NameOf(rank), " ", fate, why.empty() ? "" : ": ", why)),
             /*said=*/refused || given_up);
      }
      changed_.notify_all();
    }
    calls_.Lose(rank, fate);
    if (events_.on_end) events_.on_end(rank, fate);
  }

  void Hear(int from, RankMessage* message) {
    Heard(from);
    if (message->has_answer()) return calls_.Answer(from, std::move(*message->mutable_answer()));
    if (message->has_event() && events_.on_event) return events_.on_event(from, message->event());
    if (message->has_leaves()) return TakeLeave(from, message->leaves());
    if (message->has_work() && !is_leader()) return own_calls_.Take(std::move(*message->mutable_work()));
    const std::lock_guard lock(mutex_);
    if (message->has_loaded() || message->has_load_error()) return TakeLoad(*message);
    if (message->has_ask()) {
      message->set_here(true);
      return Say(from, std::move(*message));
    }
    if (message->has_here()) {
      --lanes_[from].unanswered;
      changed_.notify_all();
    }
    if (message->has_welcome() && !is_leader() && message->welcome().endpoints_size() == world_size()) {
      joined_.assign(message->welcome().endpoints().begin(), message->welcome().endpoints().end());
      welcome_ = true;
      changed_.notify_all();
    }
  }

  // ---- The leader's ends.

  grpc::Status Lane(grpc::ServerContext* context, grpc::ServerReaderWriter<RankMessage, RankMessage>* stream) override {
    return ToGrpc([&] { return DoLane(context, stream); });
  }

  bool ReadJoin(grpc_call* call, grpc::ServerReaderWriter<RankMessage, RankMessage>* stream, RankMessage* message) {
    std::unique_lock lock(mutex_);
    without_join_[call] = 0;
    lock.unlock();
    const bool read = stream->Read(message);
    lock.lock();
    without_join_.erase(call);
    return read && message->has_join();
  }

  absl::Status DoLane(grpc::ServerContext* context, grpc::ServerReaderWriter<RankMessage, RankMessage>* stream) {
    if (!is_leader()) return absl::FailedPreconditionError(absl::StrCat("this is rank ", rank(), "; rank 0 leads"));
    if (world_size() == 1) return absl::FailedPreconditionError("this service has one rank");
    RankMessage message;
    if (!ReadJoin(context->c_call(), stream, &message)) {
      return absl::InvalidArgumentError("the first message is not `join`");
    }
    const int from = message.join().rank();
    const auto outbox = std::make_shared<Outbox>([this, from, stream](const RankMessage& out) {
      // One that takes in much is there, though it may come late to what it is asked.
      if (stream->Write(out) && !out.has_ask()) Heard(from);
    });
    const auto cancel = [context](const absl::Status& status) { EndCall(context->c_call(), status); };
    if (const absl::Status admitted = Admit(message.join(), {.outbox = outbox, .cancel = cancel}); !admitted.ok()) {
      QUARTET_LOG(kWarning) << "refused rank " << from << " (" << message.join().endpoint()
                            << "): " << admitted.message();
      return admitted;
    }
    const absl::Cleanup end = [&] {
      EndLane(from, absl::OkStatus());
      outbox->End();  // who has it still writes nothing more
    };
    do {
      calls_.Heard(from);
      Hear(from, &message);
    } while (stream->Read(&message));
    return absl::OkStatus();
  }

  absl::Status Admit(const LaneJoin& join, LaneEnd lane) {
    if (join.rank() < 1 || join.rank() >= world_size() || join.endpoint().empty()) {
      return absl::InvalidArgumentError(absl::StrCat("join: rank is ", join.rank(), ", at \"", join.endpoint(),
                                                     "\"; allowed: 1 to ", world_size() - 1, ", at its address"));
    }
    QUARTET_RETURN_IF_ERROR(CheckIsAlike(join, JoinOf(context_)));
    const std::lock_guard lock(mutex_);
    if (leaving_) return absl::UnavailableError("rank 0 is stopping");
    if (!joined_[join.rank()].empty()) {
      return absl::AlreadyExistsError(absl::StrCat(NameOf(join.rank()), " has joined already"));
    }
    joined_[join.rank()] = join.endpoint();
    lanes_[join.rank()] = std::move(lane);
    liveness_.Heard(join.rank());
    Welcome();
    return absl::OkStatus();
  }

  // ---- A follower's end.

  void Join(const std::shared_ptr<grpc::Channel>& leader) {
    RankMessage join;
    *join.mutable_join() = JoinOf(context_);
    const std::lock_guard lock(mutex_);
    if (leaving_) return;
    follower_ = std::make_unique<FollowerEnd>(leader);
    lanes_[0] = {.outbox = follower_->outbox,
                 .cancel = [this](const absl::Status&) { follower_->context.TryCancel(); }};
    liveness_.Heard(0);
    Say(0, std::move(join));
    follower_->reader = std::thread([this, end = follower_.get()] {
      RankMessage message;
      while (end->stream->Read(&message)) Hear(0, &message);
      end->outbox->Drop();
      EndLane(0, FromGrpc(end->stream->Finish()));
    });
  }

  const RankContext& context_;
  const Callbacks callbacks_;
  const absl::Duration heartbeat_;
  const RankMessage ask_ = [] {
    RankMessage ask;
    ask.set_ask(true);
    return ask;
  }();
  Events events_;  // constant after Start

  OwnRank own_;
  LeaderCalls calls_;        // on the leader
  FollowerCalls own_calls_;  // on a follower
  std::atomic<bool> broken_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::vector<std::string> joined_;  // endpoints, by rank
  std::vector<LaneEnd> lanes_;       // by rank; a follower has one, to rank 0
  std::vector<bool> left_;           // by rank: it has said so, or is given up
  Liveness liveness_;
  std::map<grpc_call*, int> without_join_;  // the leader's lanes whose first message has not come, and their heartbeats
  std::unique_ptr<FollowerEnd> follower_;   // constant from Join on
  bool welcome_ = false;                    // all have joined
  int ranks_loaded_ = 0;                    // on the leader
  std::optional<absl::Status> loaded_;      // all ranks have, or the first error of any, as the leader knows it
  absl::Status lost_;
  bool leaving_ = false;
  std::vector<std::thread> running_callbacks_;
};

}  // namespace

std::unique_ptr<RankGroup> RankGroup::Create(const RankContext& context, Callbacks callbacks,
                                             absl::Duration heartbeat) {
  return std::make_unique<RankGroupImpl>(context, std::move(callbacks), heartbeat);
}

}  // namespace quartet
