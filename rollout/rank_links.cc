#include "rollout/rank_links.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace quartet {

RankLinks::~RankLinks() {
  for (std::thread& thread : threads_) thread.join();
  AwaitEnd();
}

void RankLinks::AwaitEnd() {
  const std::lock_guard lock(work_mutex_);
  if (work_.joinable()) work_.join();
}

absl::Status RankLinks::Start() {
  pipes_.resize(context_.world_size);
  for (int rank = 1; rank < context_.world_size; ++rank) {
    QUARTET_ASSIGN_OR_RETURN(pipes_[rank], group_.OpenPipe(rank, kWorkPipe));
  }
  for (int rank = 1; rank < context_.world_size; ++rank) threads_.emplace_back([this, rank] { Listen(rank); });
  for (int group = 0; group < dispatcher_.groups(); ++group) threads_.emplace_back([this, group] { Supply(group); });
  const std::lock_guard lock(work_mutex_);
  work_ =
      std::thread([this] { worker_.Work([this](RankEvents events) { dispatcher_.Answer(0, std::move(events)); }); });
  return absl::OkStatus();
}

// Takes the work of engines that step together to their ranks.
void RankLinks::Supply(int group) {
  std::vector<Dispatcher::Works> works;
  for (bool more = true; more;) {
    more = dispatcher_.Take(group, &works);
    for (int rank = 0; rank < context_.world_size; ++rank) {
      for (const RankWork& work : works[dispatcher_.engine_of(rank)]) {
        if (rank == 0) {
          worker_.Put(work);
        } else {
          pipes_[rank]->Write(work.SerializeAsString());  // where it fails, Listen says so
        }
      }
    }
  }
}

// Takes one follower's answers.
void RankLinks::Listen(int rank) {
  std::string message;
  while (pipes_[rank]->Read(&message)) {
    RankEvents events;
    if (!events.ParseFromString(message)) {
      group_.Break(absl::InternalError(absl::StrCat("rank ", rank, ": unreadable RankEvents")));
      return;
    }
    dispatcher_.Answer(rank, std::move(events));
  }
  dispatcher_.Fail(absl::UnavailableError(absl::StrCat("rank ", rank, " (", group_.endpoints()[rank], ") is gone")));
}

}  // namespace quartet
