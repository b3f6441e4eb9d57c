#include "core/service/ranks/group/handler_run.h"

#include <utility>

#include "core/errors/exceptions.h"

namespace quartet {

std::function<void()> HandlerRun::WorkOf(std::shared_ptr<HandlerRun> run) {
  struct Owner {
    explicit Owner(std::shared_ptr<HandlerRun> r) : run(std::move(r)) {}
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;
    ~Owner() { run->Withdraw(absl::CancelledError("this rank is stopping")); }
    const std::shared_ptr<HandlerRun> run;
  };
  return [owner = std::make_shared<Owner>(std::move(run))] { owner->run->Run(); };
}

void HandlerRun::Run() {
  {
    std::unique_lock lock(mutex_);
    turn_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return permitted_ || begun_; });
    if (std::exchange(begun_, true)) return;
  }
  Put(CatchAll([this] { return handler_(input_); }));
}

bool HandlerRun::AwaitTurn(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout), [this] { return turn_ || begun_; });
}

void HandlerRun::Permit() {
  const std::lock_guard lock(mutex_);
  permitted_ = true;
  changed_.notify_all();
}

void HandlerRun::Withdraw(const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(begun_, true)) return;
  }
  Put(status);  // wakes whoever waits to be permitted, too
}

void HandlerRun::Put(absl::StatusOr<RankOutput> output) {
  const std::lock_guard lock(mutex_);
  output_ = std::move(output);
  changed_.notify_all();
}

std::optional<absl::StatusOr<RankOutput>> HandlerRun::Take(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout), [this] { return output_.has_value(); });
  return std::exchange(output_, std::nullopt);
}

absl::StatusOr<RankOutput> HandlerRun::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return output_.has_value(); });
  return *std::exchange(output_, std::nullopt);
}

}  // namespace quartet
