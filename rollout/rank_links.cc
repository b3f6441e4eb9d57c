#include "rollout/rank_links.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quartet {

RankLinks::RankLinks(RankGroup& group, RankWorker& worker, Dispatcher& dispatcher)
    : group_(group), worker_(worker), dispatcher_(dispatcher) {
  group.OnEvents({.on_event = [this](int rank, const std::string& event) { Hear(rank, event); },
                  .on_end = [this](int rank, const std::string& fate) { Lose(rank, fate); }});
}

RankLinks::~RankLinks() {
  for (std::thread& thread : threads_) thread.join();
}

void RankLinks::Start() {
  if (group_.is_leader()) {
    for (int group = 0; group < dispatcher_.groups(); ++group) threads_.emplace_back([this, group] { Supply(group); });
  }
  const std::lock_guard lock(mutex_);
  working_ = true;
  threads_.emplace_back([this] {
    worker_.Work([this](RankEvents events) {
      if (group_.is_leader()) return dispatcher_.Answer(0, std::move(events));
      group_.SendEvent(0, events.SerializeAsString());
    });
    const std::lock_guard end(mutex_);
    working_ = false;
    changed_.notify_all();
  });
}

void RankLinks::AwaitEnd(const Deadline& until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until.time(), [this] { return !working_; });
}

// Takes the work of engines that step together to their ranks.
void RankLinks::Supply(int group) {
  std::vector<Dispatcher::WorkQueue> works;
  for (bool more = true; more;) {
    more = dispatcher_.Take(group, &works);
    for (int rank = 0; rank < group_.world_size(); ++rank) {
      for (const RankWork& work : works[dispatcher_.engine_of(rank)]) {
        if (rank == 0) {
          worker_.Put(work);
        } else {
          group_.SendEvent(rank, work.SerializeAsString());
        }
      }
    }
  }
}

// The leader's work on another rank, and another rank's answer on the leader.
void RankLinks::Hear(int rank, const std::string& event) {
  RankWork work;
  RankEvents events;
  if (group_.is_leader() ? !events.ParseFromString(event) : !work.ParseFromString(event)) {
    return group_.Break(absl::InternalError(absl::StrCat("rank ", rank, ": unreadable event")));
  }
  if (group_.is_leader()) return dispatcher_.Answer(rank, std::move(events));
  worker_.Put(std::move(work));
}

void RankLinks::Lose(int rank, const std::string& fate) {
  if (!group_.is_leader()) return worker_.Close();
  dispatcher_.Fail(absl::UnavailableError(absl::StrCat("rank ", rank, " (", group_.endpoints()[rank], ") ", fate)));
}

}  // namespace quartet
