#include "core/service/ranks/lifeline.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/service/rpc/wire_text.h"

namespace quartet {
namespace {

constexpr char kPipe[] = "lifeline";
constexpr std::chrono::milliseconds kHearing{500};

}  // namespace

Lifeline::Lifeline(RankGroup& group, Callbacks callbacks)
    : group_(group), callbacks_(std::move(callbacks)), lines_(group.world_size()) {
  if (group.is_leader()) return;
  group.RegisterPipe(kPipe, [this](RankPipe& pipe) {
    Open(0, pipe);
    Follow(0, pipe);
  });
}

Lifeline::~Lifeline() { Leave("it is not used any more", /*broken=*/false); }

absl::Status Lifeline::Start() {
  for (int rank = 1; rank < group_.world_size() && group_.is_leader(); ++rank) {
    QUARTET_ASSIGN_OR_RETURN(std::shared_ptr<RankPipe> pipe, group_.OpenPipe(rank, kPipe));
    Open(rank, *pipe);
    threads_.emplace_back([this, rank, pipe = std::move(pipe)] { Follow(rank, *pipe); });
  }
  return absl::OkStatus();
}

void Lifeline::Open(int rank, RankPipe& pipe) {
  const std::lock_guard lock(mutex_);
  lines_[rank].pipe = &pipe;
  for (const LifelineMessage& message : std::exchange(lines_[rank].unsent, {})) Say(rank, message);
}

// Reads what the other end says, to its end.
void Lifeline::Follow(int rank, RankPipe& pipe) {
  LifelineMessage message;
  std::string bytes;
  while (!message.has_leaves() && pipe.Read(&bytes) && message.ParseFromString(bytes)) Handle(message);
  pipe.Cancel();  // the other end knows that it is heard
  {
    const std::lock_guard lock(mutex_);
    lines_[rank].pipe = nullptr;
    changed_.notify_all();
    if (leaving_) return;
  }
  if (message.has_leaves() && !message.leaves().broken()) {
    const std::string& why = message.leaves().why();
    const bool passed_on = absl::StrContains(why, " (of rank ");
    return callbacks_.on_leave(passed_on ? why : absl::StrCat(why, " (of rank ", rank, ")"));
  }
  absl::Status status = absl::UnavailableError(message.leaves().why());
  if (!message.has_leaves()) {
    const std::string why = pipe.WhyEnded();
    status = absl::UnavailableError(
        absl::StrCat("rank ", rank, " (", group_.endpoints()[rank], ") is gone", why.empty() ? "" : ": ", why));
  }
  callbacks_.on_broken(status);
  const std::lock_guard lock(mutex_);
  broken_.Update(status);
  changed_.notify_all();
}

void Lifeline::Handle(const LifelineMessage& message) {
  const std::lock_guard lock(mutex_);
  if (message.has_load_error()) AddLoadError(message.load_error());
  if (message.has_loaded()) {
    if (group_.is_leader()) {
      AddLoaded();
    } else {
      all_loaded_ = true;
    }
  }
  changed_.notify_all();
}

void Lifeline::ReportLoad(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  LifelineMessage message;
  if (status.ok()) {
    message.set_loaded(true);
  } else {
    message.set_load_error(WireText(status.message()));
  }
  if (!group_.is_leader()) {
    Say(0, message);
  } else if (status.ok()) {
    AddLoaded();
  } else {
    AddLoadError(message.load_error());
  }
  changed_.notify_all();
}

// Under the lock, as what follows.
void Lifeline::AddLoaded() {
  all_loaded_ = ++loaded_ == group_.world_size();
  if (!all_loaded_) return;
  LifelineMessage message;
  message.set_loaded(true);
  SayToAll(message);
}

void Lifeline::AddLoadError(const std::string& error) {
  if (!load_error_.empty()) return;
  load_error_ = error;
  if (!group_.is_leader()) return;
  LifelineMessage message;
  message.set_load_error(error);
  SayToAll(message);
}

void Lifeline::Say(int rank, const LifelineMessage& message) {
  Line& line = lines_[rank];
  if (line.pipe == nullptr) {
    line.unsent.push_back(message);
  } else {
    line.pipe->Write(message.SerializeAsString());  // a pipe that has ended says so to its reader
  }
}

void Lifeline::SayToAll(const LifelineMessage& message) {
  const int first = group_.is_leader() ? 1 : 0, end = group_.is_leader() ? group_.world_size() : 1;
  for (int rank = first; rank < end; ++rank) Say(rank, message);
}

absl::Status Lifeline::WaitUntilAllLoaded() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return all_loaded_ || !load_error_.empty() || !broken_.ok() || leaving_; });
  if (!load_error_.empty()) return absl::AbortedError(load_error_);
  if (!broken_.ok()) return broken_;
  return all_loaded_ ? absl::OkStatus() : absl::CancelledError("this rank is stopping");
}

void Lifeline::Announce(const std::string& why, bool broken) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(leaving_, true)) return;
  LifelineMessage message;
  message.mutable_leaves()->set_why(WireText(why));
  message.mutable_leaves()->set_broken(broken);
  SayToAll(message);
  changed_.notify_all();
}

void Lifeline::Leave(const std::string& why, bool broken) {
  Announce(why, broken);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kHearing, [this] {
    return std::all_of(lines_.begin(), lines_.end(), [](const Line& line) { return line.pipe == nullptr; });
  });
  for (const Line& line : lines_) {
    if (line.pipe != nullptr) line.pipe->Cancel();
  }
  std::vector<std::thread> threads = std::exchange(threads_, {});
  lock.unlock();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace quartet
