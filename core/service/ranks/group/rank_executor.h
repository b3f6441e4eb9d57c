// The one thread of a rank that enters LibTorch and collectives.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

namespace quartet {

// Numbered work runs strictly in the order of its numbers, from 1 and without gaps, however it comes in; other work
// runs whenever the thread is free. Thread safe.
class RankExecutor {
 public:
  RankExecutor();
  ~RankExecutor();  // as Stop
  RankExecutor(const RankExecutor&) = delete;
  RankExecutor& operator=(const RankExecutor&) = delete;

  // False after Stop (the work will not run), or where the number was used already.
  bool SubmitNumbered(uint64_t number, std::function<void()> work);
  bool Submit(std::function<void()> work);

  bool IsOwnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // Waits for the running work; what has not begun is dropped. Idempotent; not from the executor's own thread.
  void Stop();

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, std::function<void()>> numbered_;
  std::deque<std::function<void()>> others_;
  uint64_t next_number_ = 1;
  bool stopping_ = false;
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace quartet
