#include "core/service/ranks/group/leader_calls.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/running_wait.h"
#include "core/comm/agreed_error.h"
#include "core/errors/exceptions.h"
#include "core/service/ranks/group/lane_parts.h"

namespace quartet {
namespace {

// A rank that has said nothing for this part of a heartbeat is asked before it is sent anything.
constexpr int kSilencePart = 10;
// For a rank to answer that: one that computes does so at once.
constexpr int kAnswerHeartbeats = 15;
// After a rank of a collective call has failed, for the others to say whether they refused too.
constexpr int kFailureHeartbeats = 2;
// In place of the time when a rank was heard: nobody waits for it.
constexpr Deadline::Clock::time_point kNoLane = Deadline::Clock::time_point::max();

// Errors that a rank can only have found before its first collective, given that all ranks found the same.
constexpr absl::StatusCode kRefusals[] = {absl::StatusCode::kInvalidArgument, absl::StatusCode::kFailedPrecondition,
                                          absl::StatusCode::kNotFound,        absl::StatusCode::kAlreadyExists,
                                          absl::StatusCode::kOutOfRange,      absl::StatusCode::kDataLoss,
                                          absl::StatusCode::kUnimplemented};

}  // namespace

struct LeaderCalls::Call {
  const std::string name;
  const RankMethod& method;
  const Deadline deadline;
  const bool together;  // the handlers of several ranks need each other
  std::vector<RankInput> inputs;
  std::vector<std::optional<absl::StatusOr<RankOutput>>> outputs;  // by rank, once it has answered
  std::vector<RankOutput> arriving = std::vector<RankOutput>(outputs.size());
  size_t answers = 0;
  std::vector<int> failures = {};  // ranks, in the order in which they failed
  bool begun = false;
  bool withdrawn = false;  // it will not begin
  bool lost = false;       // a rank of it is gone
  bool hangs = false;
  Deadline hangs_after = Deadline::Never();  // the ranks wait for each other in vain
  Deadline grace_end = Deadline::Never();

  bool ended() const { return answers == outputs.size(); }
  // Whether no rank can have failed from inside a collective (RankGroup::Kind).
  bool in_step() const {
    if (failures.size() < outputs.size()) return failures.empty() && ended();
    return std::all_of(outputs.begin(), outputs.end(), [this](const auto& output) {
      const absl::StatusCode code = output->status().code();
      return IsAgreed(output->status()) ||
             (code == outputs[0]->status().code() && absl::c_linear_search(kRefusals, code));
    });
  }
};

LeaderCalls::LeaderCalls(int ranks, absl::Duration heartbeat, absl::Duration collective_timeout, OwnRank& own,
                         std::function<std::string(int)> name, std::function<void(int, RankMessage)> send)
    : ranks_(ranks),
      heartbeat_(heartbeat),
      collective_timeout_(collective_timeout),
      own_(own),
      name_(std::move(name)),
      send_(std::move(send)),
      heard_(ranks, kNoLane) {}

absl::StatusOr<std::vector<RankOutput>> LeaderCalls::Run(const std::string& name, const RankMethod& method,
                                                         std::vector<RankInput> inputs, const Deadline& deadline,
                                                         absl::Status* broken) {
  const auto call =
      std::make_shared<Call>(Call{.name = name,
                                  .method = method,
                                  .deadline = deadline,
                                  .together = method.kind == RankGroup::Kind::kCollective && ranks_ > 1,
                                  .inputs = std::move(inputs),
                                  .outputs = std::vector<std::optional<absl::StatusOr<RankOutput>>>(ranks_)});
  Lock lock(mutex_);
  if (!method.concurrent()) queue_.push_back(call.get());
  const absl::Cleanup leave = [&] {
    std::erase(queue_, call.get());
    std::erase_if(sent_, [&](const auto& sent) { return sent.second == call; });
    changed_.notify_all();
  };
  QUARTET_RETURN_IF_ERROR(AwaitTurn(*call, lock));
  QUARTET_RETURN_IF_ERROR(AwaitRanks(*call, lock));
  QUARTET_RETURN_IF_ERROR(AwaitBegin(call, lock));
  AwaitEnd(*call, lock);
  if (call->ended() && call->failures.empty()) {
    std::vector<RankOutput> outputs;
    for (auto& output : call->outputs) outputs.push_back(**std::move(output));
    return outputs;
  }
  absl::Status error = ErrorOf(*call);
  // Of a rank that is gone, and of the end of all, others hear otherwise.
  if (call->together && !call->in_step() && !call->lost && end_.ok()) *broken = Prefixed(name, error);
  return error;
}

absl::Status LeaderCalls::CheckOpen(const Call& call) const { return end_.ok() ? Prefixed(call.name, refusal_) : end_; }

absl::Status LeaderCalls::AwaitTurn(const Call& call, Lock& lock) {
  const bool came = WaitWhileRunning(changed_, lock, call.deadline, [&] {
    return call.method.concurrent() || queue_.front() == &call || !CheckOpen(call).ok();
  });
  if (came) return CheckOpen(call);
  const Call& first = *queue_.front();
  return absl::DeadlineExceededError(
      absl::StrCat(call.name, ": it has not begun in time: ", first.name,
                   first.begun ? absl::StrCat(" runs on ", Unanswered(first)) : " has not begun either"));
}

// Asks the ranks that have been silent for a part of a heartbeat, and waits until each answers or its lane ends.
absl::Status LeaderCalls::AwaitRanks(const Call& call, Lock& lock) {
  const auto since = Deadline::Clock::now() - absl::ToChronoNanoseconds(heartbeat_ / kSilencePart);
  const auto silent = [&] {
    std::vector<int> ranks;
    for (int rank = 1; rank < ranks_; ++rank) {
      if (heard_[rank] < since) ranks.push_back(rank);
    }
    return ranks;
  };
  RankMessage message;
  message.set_ask(true);
  for (const int rank : silent()) send_(rank, message);
  const Deadline until = std::min(call.deadline, Deadline::In(kAnswerHeartbeats * heartbeat_));
  WaitWhileRunning(changed_, lock, until, [&] { return silent().empty() || !CheckOpen(call).ok(); });
  QUARTET_RETURN_IF_ERROR(CheckOpen(call));
  if (silent().empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      until < call.deadline
          ? absl::StrCat(call.name, ": ", NamesOf(silent()), " has not answered for ",
                         absl::FormatDuration(kAnswerHeartbeats * heartbeat_), ": stopped, or its host is gone")
          : absl::StrCat(call.name, ": not all ranks were ready in time: ", NamesOf(silent())));
}

// Begins on this rank, which sends the others their parts, once its executor thread comes to it.
absl::Status LeaderCalls::AwaitBegin(const std::shared_ptr<Call>& call, Lock& lock) {
  QUARTET_RETURN_IF_ERROR(own_.Start(call->method.concurrent(), [this, call] {
    if (!Begin(call)) return;
    absl::StatusOr<RankOutput> output = CatchAll([&] { return call->method.handler(call->inputs[0]); });
    const std::lock_guard own_lock(mutex_);
    Take(*call, 0, std::move(output));
  }));
  WaitWhileRunning(changed_, lock, call->deadline, [&] { return call->begun || !CheckOpen(*call).ok(); });
  if (call->begun) return absl::OkStatus();
  call->withdrawn = true;
  QUARTET_RETURN_IF_ERROR(CheckOpen(*call));
  return absl::DeadlineExceededError(absl::StrCat(call->name, ": it has not begun in time on ", name_(0)));
}

bool LeaderCalls::Begin(const std::shared_ptr<Call>& call) {
  const std::lock_guard lock(mutex_);
  if (call->withdrawn || call->deadline.passed() || !CheckOpen(*call).ok()) return false;
  call->begun = true;
  if (call->together) call->hangs_after = std::max(call->deadline, Deadline::In(collective_timeout_));
  const uint64_t number = ++last_number_;
  sent_[number] = call;
  for (int rank = 1; rank < ranks_; ++rank) {
    RankInput& input = call->inputs[rank];
    LanePart last;
    last.set_call(number);
    last.set_method(call->name);
    last.set_head(std::move(input.header));
    last.set_concurrent(call->method.concurrent());
    SendInParts(std::move(last), std::move(input.items), &RankMessage::mutable_work,
                [&](RankMessage message) { send_(rank, std::move(message)); });
  }
  changed_.notify_all();
  return true;
}

void LeaderCalls::AwaitEnd(Call& call, Lock& lock) {
  bool logged = false;
  while (!call.ended() && end_.ok()) {
    const Deadline until = std::min({call.grace_end, call.hangs_after, logged ? Deadline::Never() : call.deadline});
    if (WaitWhileRunning(changed_, lock, until, [&] { return call.ended() || !end_.ok() || call.grace_end < until; }))
      continue;
    call.hangs = call.hangs_after.passed();
    if (call.hangs || call.grace_end.passed()) return;
    QUARTET_LOG(kWarning) << call.name << " has not ended by its deadline, and is waited for on " << Unanswered(call);
    logged = true;
  }
}

void LeaderCalls::Heard(int rank) {
  const std::lock_guard lock(mutex_);
  heard_[rank] = Deadline::Clock::now();
  changed_.notify_all();
}

void LeaderCalls::Answer(int rank, LanePart answer) {
  const std::lock_guard lock(mutex_);
  const auto found = sent_.find(answer.call());
  if (found == sent_.end()) return;  // nobody waits for it any more
  Call& call = *found->second;
  if (call.outputs[rank].has_value()) return;
  RankOutput& output = call.arriving[rank];
  for (std::string& item : *answer.mutable_items()) output.items.push_back(std::move(item));
  if (!answer.last()) return;
  output.summary = std::move(*answer.mutable_head());
  if (!answer.has_error()) return Take(call, rank, std::move(output));
  absl::Status error(static_cast<absl::StatusCode>(answer.error().code()), answer.error().message());
  if (answer.error().agreed()) MarkAgreed(&error);
  Take(call, rank, std::move(error));
}

void LeaderCalls::Lose(int rank, const std::string& fate) {
  const std::lock_guard lock(mutex_);
  heard_[rank] = kNoLane;
  if (refusal_.ok()) refusal_ = absl::UnavailableError(absl::StrCat(name_(rank), " ", fate));
  for (const auto& [number, call] : sent_) {
    if (call->outputs[rank].has_value()) continue;
    call->lost = true;
    Take(*call, rank, absl::UnavailableError(fate));
  }
  changed_.notify_all();
}

// Under the lock.
void LeaderCalls::Take(Call& call, int rank, absl::StatusOr<RankOutput> output) {
  if (!output.ok()) {
    call.failures.push_back(rank);
    if (call.together) call.grace_end = std::min(call.grace_end, Deadline::In(kFailureHeartbeats * heartbeat_));
  }
  call.outputs[rank] = std::move(output);
  ++call.answers;
  changed_.notify_all();
}

void LeaderCalls::Refuse(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  if (refusal_.ok()) refusal_ = status;
  changed_.notify_all();
}

void LeaderCalls::End(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  end_.Update(status);
  changed_.notify_all();
}

std::string LeaderCalls::NamesOf(const std::vector<int>& ranks) const {
  return absl::StrJoin(ranks, ", ", [this](std::string* out, int rank) { *out += name_(rank); });
}

std::string LeaderCalls::Unanswered(const Call& call) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!call.outputs[rank].has_value()) ranks.push_back(rank);
  }
  return NamesOf(ranks);
}

// What the call's failures come to. The first is the cause; what ranks say that were cut off because of it is not.
absl::Status LeaderCalls::ErrorOf(const Call& call) const {
  const auto of = [&](int rank) { return Prefixed(name_(rank), call.outputs[rank]->status()); };
  const auto cause = std::find_if(call.failures.begin(), call.failures.end(),
                                  [&](int rank) { return !absl::IsCancelled(of(rank)) && !absl::IsAborted(of(rank)); });
  absl::Status error;
  if (!call.failures.empty()) error = of(cause == call.failures.end() ? call.failures.front() : *cause);
  if (call.hangs && error.ok()) {
    return absl::DeadlineExceededError(absl::StrCat(call.name, ": no answer in time from ", Unanswered(call)));
  }
  if (end_.ok() || absl::StrContains(error.message(), end_.message())) return error;
  if (error.ok()) return end_;
  return absl::Status(error.code(), absl::StrCat(error.message(), "; ", end_.message()));
}

}  // namespace quartet
