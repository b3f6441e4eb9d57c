#include "core/service/ranks/group/rank_executor.h"

#include <utility>

namespace quartet {

RankExecutor::RankExecutor() : thread_([this] { Loop(); }) {}

RankExecutor::~RankExecutor() { Stop(); }

bool RankExecutor::SubmitNumbered(uint64_t number, std::function<void()> work) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_ || number < next_number_ || !numbered_.emplace(number, std::move(work)).second) return false;
  changed_.notify_all();
  return true;
}

bool RankExecutor::Submit(std::function<void()> work) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_) return false;
  others_.push_back(std::move(work));
  changed_.notify_all();
  return true;
}

void RankExecutor::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  std::lock_guard<std::mutex> lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void RankExecutor::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    const auto next_is_here = [this] { return !numbered_.empty() && numbered_.begin()->first == next_number_; };
    changed_.wait(lock, [&] { return stopping_ || next_is_here() || !others_.empty(); });
    if (stopping_) break;
    std::function<void()> work;
    if (next_is_here()) {
      work = std::move(numbered_.begin()->second);
      numbered_.erase(numbered_.begin());
      ++next_number_;
    } else {
      work = std::move(others_.front());
      others_.pop_front();
    }
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
  // Destroying what is dropped tells those who wait for it.
  auto numbered = std::move(numbered_);
  auto others = std::move(others_);
  numbered_.clear();
  others_.clear();
  lock.unlock();
}

}  // namespace quartet
