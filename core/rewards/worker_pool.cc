#include "core/rewards/worker_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/errors/exceptions.h"

namespace quartet {
namespace {

using TimePoint = Deadline::Clock::time_point;

bool MayPass(const absl::Status& status) {
  return !absl::IsInvalidArgument(status) && !absl::IsFailedPrecondition(status) && !absl::IsUnimplemented(status) &&
         !absl::IsDataLoss(status) && !absl::IsCancelled(status);
}

struct Task {
  std::shared_ptr<const Answer> answer;
  std::stop_token stop;
  WorkerPool::Done done;
  int tries = 0;
};

}  // namespace

struct WorkerPool::State {
  std::unique_ptr<RewardFunction> function;
  WorkerPoolOptions options;
  std::mutex mutex;
  std::condition_variable_any changed;
  // Not tried yet, in the order in which they came.
  std::deque<Task> fresh;
  // By the time from which on they may be tried again. They go before what is fresh, so that an answer that no try
  // helps is known soon, however many wait.
  std::multimap<TimePoint, Task> again;
  bool ending = false;
  int64_t failed_tries = 0;
  TimePoint quiet_until{};  // the log is not told of further ones
  std::stop_source end;
  std::minstd_rand random{std::random_device{}()};
  std::vector<std::jthread> threads;  // last: they use what is above

  TimePoint NextTry(int tries) {
    absl::Duration pause = options.first_pause;
    for (int i = 1; i < tries && pause < options.longest_pause; ++i) pause *= 2;
    pause = std::min(pause, options.longest_pause) * std::uniform_real_distribution<>(0.5, 1)(random);
    return Deadline::In(pause).time();
  }

  // What may be tried now, or is to be given up; empty: the pool ends.
  std::vector<Task> Take() {
    std::unique_lock lock(mutex);
    while (true) {
      if (ending) return {};
      std::vector<Task> taken;
      const TimePoint now = Deadline::Clock::now();
      while (taken.size() < static_cast<size_t>(options.max_batch) && !again.empty() && again.begin()->first <= now) {
        taken.push_back(std::move(again.extract(again.begin()).mapped()));
      }
      while (taken.size() < static_cast<size_t>(options.max_batch) && !fresh.empty()) {
        taken.push_back(std::move(fresh.front()));
        fresh.pop_front();
      }
      // A call that has ended does not wait for the pause before the next try.
      for (auto next = again.begin(); taken.empty() && next != again.end(); ++next) {
        if (!next->second.stop.stop_requested()) continue;
        taken.push_back(std::move(next->second));
        again.erase(next);
        break;
      }
      if (!taken.empty()) return taken;
      if (again.empty()) {
        changed.wait(lock);
      } else {
        // A copy: others may take that task while this one waits.
        const TimePoint until = std::min(Deadline::In(absl::Milliseconds(50)).time(), again.begin()->first);
        changed.wait_until(lock, until);
      }
    }
  }

  void Run() {
    for (std::vector<Task> tasks = Take(); !tasks.empty(); tasks = Take()) {
      std::erase_if(tasks, [](Task& task) {
        if (!task.stop.stop_requested()) return false;
        task.done(absl::CancelledError("the call has ended"));
        return true;
      });
      if (!tasks.empty()) Try(std::move(tasks));
    }
  }

  void CountFailure(const absl::Status& why) {
    int64_t count = 0;
    {
      const std::lock_guard lock(mutex);
      count = ++failed_tries;
      if (Deadline::Clock::now() < quiet_until) return;
      quiet_until = Deadline::In(absl::Minutes(1)).time();
    }
    QUARTET_LOG(kWarning) << options.name << ": " << count
                          << (count == 1 ? " try at scoring an answer has failed: "
                                         : " tries at scoring an answer have failed so far, the last one: ")
                          << why.message();
  }

  void Try(std::vector<Task> tasks) {
    std::vector<const Answer*> answers;
    // The function stops when the pool ends, or no one of its answers is wanted any more.
    std::stop_source stop;
    struct Pass {
      std::stop_source* stop;
      std::atomic<size_t>* wanted;
      void operator()() const {
        if (--*wanted == 0) stop->request_stop();
      }
    };
    struct PassAtOnce {
      std::stop_source* stop;
      void operator()() const { stop->request_stop(); }
    };
    std::atomic<size_t> wanted = tasks.size();
    std::vector<absl::StatusOr<Reward>> rewards;
    {
      std::vector<std::unique_ptr<std::stop_callback<Pass>>> callbacks;
      for (const Task& task : tasks) {
        answers.push_back(task.answer.get());
        callbacks.push_back(std::make_unique<std::stop_callback<Pass>>(task.stop, Pass{&stop, &wanted}));
      }
      const std::stop_callback<PassAtOnce> at_end(end.get_token(), PassAtOnce{&stop});
      const absl::Status scored = CatchAll([&] {
        rewards = function->Score(answers, stop.get_token());
        return absl::OkStatus();
      });
      if (!scored.ok()) rewards.assign(tasks.size(), scored);
    }
    for (size_t i = 0; i < tasks.size(); ++i) {
      Task& task = tasks[i];
      ++task.tries;
      if (!rewards[i].ok() && !absl::IsCancelled(rewards[i].status())) CountFailure(rewards[i].status());
      if (!rewards[i].ok() && MayPass(rewards[i].status()) && task.tries < options.max_tries) {
        const std::lock_guard lock(mutex);
        if (!ending) {
          again.emplace(NextTry(task.tries), std::move(task));
          continue;
        }
      }
      if (!rewards[i].ok() && task.tries > 1) {
        task.done(Prefixed(absl::StrCat("after ", task.tries, " tries"), rewards[i].status()));
      } else {
        task.done(std::move(rewards[i]));
      }
    }
  }
};

WorkerPool::WorkerPool(std::unique_ptr<RewardFunction> function, const WorkerPoolOptions& options)
    : state_(std::make_unique<State>()) {
  state_->function = std::move(function);
  state_->options = options;
  for (int i = 0; i < options.workers; ++i) state_->threads.emplace_back([state = state_.get()] { state->Run(); });
}

WorkerPool::~WorkerPool() {
  std::vector<Task> left;
  {
    const std::lock_guard lock(state_->mutex);
    state_->ending = true;
    for (Task& task : state_->fresh) left.push_back(std::move(task));
    for (auto& [time, task] : state_->again) left.push_back(std::move(task));
    state_->fresh.clear();
    state_->again.clear();
  }
  state_->end.request_stop();
  state_->changed.notify_all();
  for (Task& task : left) task.done(absl::CancelledError("the scorer stops"));
  state_->threads.clear();  // waits for them
}

absl::Status WorkerPool::Check() const { return state_->function->Check(); }

int64_t WorkerPool::failed_tries() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failed_tries;
}

void WorkerPool::Submit(std::shared_ptr<const Answer> answer, std::stop_token stop, Done done) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->fresh.push_back({std::move(answer), std::move(stop), std::move(done)});
  }
  state_->changed.notify_one();
}

}  // namespace quartet
