#include "core/service/ranks/group/own_rank.h"

#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "core/base/logging.h"
#include "core/errors/exceptions.h"

namespace quartet {

void OwnRank::Register(const std::string& name, RankGroup::Kind kind, RankGroup::Handler handler) {
  QUARTET_CHECK(methods_.emplace(name, RankMethod{kind, std::move(handler)}).second) << name << " is there already";
}

const RankMethod* OwnRank::Find(const std::string& name) const {
  const auto found = methods_.find(name);
  return found == methods_.end() ? nullptr : &found->second;
}

absl::Status OwnRank::Start(bool concurrent, std::function<void()> work) {
  if (!concurrent) {
    executor_.Put(std::move(work));
    return absl::OkStatus();
  }
  const std::lock_guard lock(mutex_);
  const absl::Status started = CatchAll([&] {
    std::thread([this, work = std::move(work)]() mutable {
      work();
      work = nullptr;
      const std::lock_guard end(mutex_);
      --concurrent_;
      changed_.notify_all();
    }).detach();
    return absl::OkStatus();
  });
  concurrent_ += started.ok();
  return started;
}

absl::Status OwnRank::RunHere(const std::function<absl::Status()>& work) {
  if (executor_.IsThis()) return CatchAll(work);
  auto task = std::make_shared<std::packaged_task<absl::Status()>>([&work] { return CatchAll(work); });
  std::future<absl::Status> done = task->get_future();
  executor_.Put([task = std::move(task)] { (*task)(); });
  try {
    return done.get();
  } catch (const std::future_error&) {  // it was dropped
    return absl::CancelledError("this rank is stopping");
  }
}

void OwnRank::Stop() {
  const std::lock_guard stop_lock(stop_mutex_);
  executor_.Drop();
  executor_.End();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return concurrent_ == 0; });
}

}  // namespace quartet
