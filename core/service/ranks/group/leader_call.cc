#include "core/service/ranks/group/leader_call.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/comm/agreed_error.h"
#include "core/errors/exceptions.h"
#include "core/service/rpc/status_conversion.h"

namespace quartet {
namespace {

constexpr std::chrono::milliseconds kPoll{50};
// After a rank of a collective call has failed, how long the others may take to say whether they refused too.
constexpr absl::Duration kFailureGrace = absl::Seconds(2);
// After a call has come too late for a rank, how long the others, who find that out by themselves, may take to say so.
constexpr absl::Duration kWithdrawalGrace = absl::Seconds(10);
// For a rank to say that it has its part where that is next to nothing: one that computes says so at once.
constexpr absl::Duration kConfirmation = absl::Seconds(15);
// How long after the deadline it is worth a line in the log that a call is still waited for.
constexpr absl::Duration kWorthALine = absl::Seconds(1);

// Errors that a rank can only have found before its first collective, given that all ranks found the same.
bool IsRefusal(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

Deadline ConfirmedBy(const std::vector<RankInput>& inputs, const Deadline& deadline) {
  const bool has_items = std::any_of(inputs.begin(), inputs.end(), [](const RankInput& i) { return !i.items.empty(); });
  return has_items ? deadline : std::min(deadline, Deadline::In(kConfirmation));
}

}  // namespace

LeaderCall::LeaderCall(const std::string& name, const RankMethod& method, std::vector<RankInput> inputs,
                       const Deadline& deadline, absl::Duration collective_timeout, const Stubs& stubs,
                       const std::vector<std::string>& names, OwnRank& own, std::atomic<uint64_t>& last_number)
    : name_(name),
      method_(method),
      together_(method.kind == RankGroup::Kind::kCollective && names.size() > 1),
      deadline_(deadline),
      confirmed_by_(ConfirmedBy(inputs, deadline)),
      collective_timeout_(collective_timeout),
      stubs_(stubs),
      names_(names),
      own_(own),
      last_number_(last_number),
      inputs_(std::move(inputs)),
      contexts_(names.size()),
      is_ready_(names.size()),
      knows_number_(names.size()),
      has_answered_(names.size()),
      outputs_(names.size(), absl::UnknownError("no answer")) {
  knows_number_[0] = true;
}

absl::StatusOr<std::vector<RankOutput>> LeaderCall::Run() {
  std::vector<std::jthread> threads;
  for (int rank = 1; rank < ranks(); ++rank) {
    const absl::Status started = CatchAll([&] {
      threads.emplace_back([this, rank] { RunOn(rank); });
      return absl::OkStatus();
    });
    if (!started.ok()) End(rank, started, false);
  }
  RunOnSelf();
  threads.clear();  // joins them
  if (!failed_) {
    std::vector<RankOutput> outputs;
    for (absl::StatusOr<RankOutput>& output : outputs_) outputs.push_back(*std::move(output));
    return outputs;
  }
  absl::Status error = FindError();
  if (gone_ && !cut_ && (lost_ || (together_ && !StayedInStep()))) broken_ = Prefixed(name_, error);
  return error;
}

// This rank holds its part; true once every rank does. The last one draws the call's number.
bool LeaderCall::WaitUntilAllReady(int rank) {
  std::unique_lock lock(mutex_);
  is_ready_[rank] = true;
  if (++ready_ == ranks() && !failed_) {
    gone_ = true;
    if (method_.kind != RankGroup::Kind::kConcurrent) number_ = ++last_number_;
  }
  changed_.notify_all();
  while (!changed_.wait_for(lock, kPoll, [this] { return gone_ || failed_; })) {
    given_up_ = confirmed_by_.passed();
    if (CutOff() || given_up_) Fail(-1);
  }
  return gone_;
}

// It is the call's turn on `rank`; true once it is on every rank, and all begin. A rank on which it is not by the
// deadline leaves the call undone, and that is the end of it here.
bool LeaderCall::WaitUntilAllsTurn(int rank) {
  std::unique_lock lock(mutex_);
  knows_number_[rank] = true;
  if (++turns_ == ranks() && !failed_) {
    if (deadline_.passed()) {
      given_up_ = true;
      Fail(-1);
    } else {
      begun_ = true;
      hangs_after_ = std::max(deadline_, Deadline::In(collective_timeout_));
    }
  }
  changed_.notify_all();
  while (!changed_.wait_for(lock, kPoll, [this] { return begun_ || failed_; })) {
    if (CutOff()) Fail(-1);
  }
  return begun_;
}

// False: the call does not begin, and this rank's part has ended.
bool LeaderCall::AwaitOwnTurn(HandlerRun& run) {
  const absl::Status not_all = absl::AbortedError("another rank does not begin");
  absl::Status error;
  while (error.ok() && !run.AwaitTurn(absl::FromChrono(kPoll))) {
    const std::lock_guard lock(mutex_);
    if (CutOff() || failed_) error = not_all;
    if (deadline_.passed()) error = absl::DeadlineExceededError("it has not begun in time");
  }
  if (error.ok() && WaitUntilAllsTurn(0)) return true;
  run.Withdraw(not_all);
  End(0, error.ok() ? not_all : error, false);
  return false;
}

// Under the lock: whether EndCalls has come.
bool LeaderCall::CutOff() {
  if (!cut_ && !own_.end().ok()) {
    cut_ = true;
    grace_end_ = Deadline::In(absl::ZeroDuration());
  }
  return cut_;
}

void LeaderCall::CancelOthers() {
  for (auto& context : contexts_) {
    if (context != nullptr) context->TryCancel();
  }
}

// Under the lock. Before `go` the others need not go on; after it they get a short while.
void LeaderCall::Fail(int rank) {
  if (rank >= 0) failures_.push_back(rank);
  const bool first = !std::exchange(failed_, true);
  if (!gone_) {
    CancelOthers();
  } else if (first && together_) {
    grace_end_ = std::min(grace_end_, Deadline::In(begun_ || lost_ ? kFailureGrace : kWithdrawalGrace));
  }
  changed_.notify_all();
}

void LeaderCall::End(int rank, absl::StatusOr<RankOutput> output, bool lost) {
  const std::lock_guard lock(mutex_);
  if (given_up_ && absl::IsCancelled(output.status())) output = absl::DeadlineExceededError("no answer in time");
  const bool ok = output.ok();
  outputs_[rank] = std::move(output);
  has_answered_[rank] = true;
  lost_ |= lost && gone_;
  ++ended_;
  if (!ok) Fail(rank);
  changed_.notify_all();
}

// The leader's part, and the watch over the others': one that hangs is waited for neither after another has failed nor
// once their collectives have been given up.
void LeaderCall::RunOnSelf() {
  if (!WaitUntilAllReady(0)) {
    End(0, absl::AbortedError("another rank was not ready"), false);
    return;
  }
  std::jthread beside;  // joined when this returns
  const std::shared_ptr<HandlerRun> run = own_.Start(method_, number_, std::move(inputs_[0]), together_, &beside);
  const Deadline worth_a_line = deadline_.never() ? deadline_ : Deadline::In(deadline_.left() + kWorthALine);
  bool withdrawn = false, logged = false;
  bool ended = together_ && !AwaitOwnTurn(*run);
  if (together_ && !ended) run->Permit();
  for (;;) {
    if (!ended) {
      std::optional<absl::StatusOr<RankOutput>> output = run->Take(absl::Milliseconds(ranks() == 1 ? 50 : 5));
      if (output.has_value()) {
        End(0, *std::move(output), false);
        ended = true;
      } else if (!together_ && deadline_.passed() && !std::exchange(withdrawn, true)) {
        run->Withdraw(absl::DeadlineExceededError("it has not begun in time"));
        continue;
      }
    }
    std::unique_lock lock(mutex_);
    if (ended) {
      changed_.wait_for(lock, kPoll, [this] { return ended_ == ranks(); });
      if (ended_ == ranks()) return;
    }
    CutOff();
    if (!given_up_ && hangs_after_.passed()) {
      given_up_ = true;
      grace_end_ = std::min(grace_end_, Deadline::In(absl::ZeroDuration()));
    }
    if (worth_a_line.passed() && !std::exchange(logged, true)) {
      QUARTET_LOG(kWarning) << name_ << " has not ended by its deadline, and is waited for on "
                            << RanksWithout(has_answered_);
    }
    if (grace_end_.passed()) {
      CancelOthers();
      if (!ended) {
        lock.unlock();
        End(0, absl::CancelledError("still running"), false);
        ended = true;
      }
    }
  }
}

void LeaderCall::RunOn(int rank) {
  grpc::ClientContext* context = nullptr;
  {
    const std::lock_guard lock(mutex_);
    contexts_[rank] = std::make_unique<grpc::ClientContext>();
    context = contexts_[rank].get();
    if (failed_) context->TryCancel();
  }
  auto stream = stubs_[rank - 1]->Execute(context);
  RankRequest request;
  RankReply reply;
  RankInput& input = inputs_[rank];
  request.mutable_begin()->set_method(name_);
  request.mutable_begin()->set_header(std::move(input.header));
  request.mutable_begin()->set_num_items(input.items.size());
  bool ok = stream->Write(request);
  for (std::string& item : input.items) {
    if (!ok) break;
    request.set_item(std::move(item));
    ok = stream->Write(request);
  }
  RankOutput output;
  bool done = false;
  if (ok && stream->Read(&reply) && reply.has_ready() && WaitUntilAllReady(rank)) {
    RankGo& go = *request.mutable_go();
    go.set_call_number(number_);
    if (!deadline_.never()) go.set_begin_within_ms(absl::ToInt64Milliseconds(deadline_.left()));
    ok = stream->Write(request);
    if (ok && together_) {
      request.mutable_begin_now();
      ok = stream->Read(&reply) && reply.has_next() && WaitUntilAllsTurn(rank) && stream->Write(request);
    }
    stream->WritesDone();
    while (ok && stream->Read(&reply)) {
      if (reply.has_done()) {
        output.summary = std::move(*reply.mutable_done()->mutable_summary());
        done = true;
      } else {
        output.items.push_back(std::move(*reply.mutable_item()));
      }
    }
  }
  absl::Status status = FromGrpc(stream->Finish());
  if (status.ok() && done) {
    End(rank, std::move(output), false);
    return;
  }
  const auto mark = context->GetServerTrailingMetadata().find(kHandlerError);
  const bool by_handler = mark != context->GetServerTrailingMetadata().end();
  if (by_handler) {
    const std::lock_guard lock(mutex_);
    knows_number_[rank] = true;
  }
  if (by_handler && mark->second == kAgreedError) MarkAgreed(&status);
  const bool lost = !by_handler && status.code() != absl::StatusCode::kCancelled;
  End(rank, status.ok() ? absl::InternalError("the rank ended its answer early") : status, lost);
}

// Under the lock.
std::string LeaderCall::RanksWithout(const std::vector<bool>& of) const {
  std::vector<std::string> without;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (!of[rank]) without.push_back(names_[rank]);
  }
  return absl::StrJoin(without, ", ");
}

// What the call's failures come to.
absl::Status LeaderCall::FindError() const {
  // The first failure is the cause; those of the ranks that were cut off because of it say nothing.
  absl::Status error;
  std::vector<std::string> late;
  for (const int rank : failures_) {
    const absl::Status& status = outputs_[rank].status();
    if (absl::IsDeadlineExceeded(status)) {
      late.push_back(names_[rank]);
    } else if (error.ok() && !absl::IsCancelled(status) && !absl::IsAborted(status)) {
      error = Prefixed(names_[rank], status);
    }
  }
  if (cut_) {
    absl::Status why = own_.end();
    if (error.ok()) return why;
    if (absl::StrContains(error.message(), why.message())) return error;
    return absl::Status(error.code(), absl::StrCat(error.message(), "; ", why.message()));
  }
  if (!error.ok()) return error;
  if (!gone_ && given_up_) {
    const std::string missing = RanksWithout(is_ready_);
    return absl::DeadlineExceededError(
        confirmed_by_ < deadline_ ? absl::StrCat(name_, ": ", missing, " has not answered for ",
                                                 absl::FormatDuration(kConfirmation), ": stopped, or its host is gone")
                                  : absl::StrCat(name_, ": not all ranks were ready in time: ", missing));
  }
  if (together_ && !begun_ && (given_up_ || !late.empty())) {
    return absl::DeadlineExceededError(absl::StrCat(
        name_, ": it has not begun in time", late.empty() ? "" : absl::StrCat(" on ", absl::StrJoin(late, ", "))));
  }
  if (!late.empty()) {
    return absl::DeadlineExceededError(absl::StrCat(name_, ": no answer in time from ", absl::StrJoin(late, ", ")));
  }
  const int rank = failures_.front();
  return Prefixed(names_[rank], outputs_[rank].status());
}

// Whether no rank can have failed from inside a collective (RankGroup::Kind), and all will be there for the next call.
bool LeaderCall::StayedInStep() const {
  if (!begun_) return std::find(knows_number_.begin(), knows_number_.end(), false) == knows_number_.end();
  if (static_cast<int>(failures_.size()) < ranks()) return false;
  for (const absl::StatusOr<RankOutput>& output : outputs_) {
    const absl::Status& status = output.status();
    const bool refused = status.code() == outputs_[0].status().code() && IsRefusal(status.code());
    if (!refused && !IsAgreed(status)) return false;
  }
  return true;
}

}  // namespace quartet
