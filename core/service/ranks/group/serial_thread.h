// A thread that takes what it is given, one after the other.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace quartet {

// Thread safe but for End.
template <typename Item>
class SerialThread {
 public:
  explicit SerialThread(std::function<void(Item)> take) : take_(std::move(take)), thread_([this] { Loop(); }) {}
  ~SerialThread() { End(); }

  // Dropped once it is closed.
  void Put(Item item) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    items_.push_back(std::move(item));
    changed_.notify_all();
  }
  // As Put; but where nothing is before it the calling thread takes it, and waits for that.
  void Take(Item item) {
    std::unique_lock lock(mutex_);
    if (closed_) return;
    if (taking_ || !items_.empty()) {
      items_.push_back(std::move(item));
      return;
    }
    TakeUnlocked(std::move(item), lock);
    changed_.notify_all();
  }
  // No more comes; what is there is taken yet.
  void Close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  // No more comes, and what is there is dropped.
  void Drop() {
    Close();
    std::unique_lock lock(mutex_);
    const std::deque<Item> dropped = std::exchange(items_, {});
    lock.unlock();  // what is dropped may tell those who wait for it, who have locks of their own
  }
  // Close, and waits for that.
  void End() {
    Close();
    if (thread_.joinable()) thread_.join();
  }

  bool IsThis() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  void Loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !taking_ && (closed_ || !items_.empty()); });
      if (items_.empty()) return;
      Item item = std::move(items_.front());
      items_.pop_front();
      TakeUnlocked(std::move(item), lock);
    }
  }

  void TakeUnlocked(Item item, std::unique_lock<std::mutex>& lock) {
    taking_ = true;
    lock.unlock();
    take_(std::move(item));
    lock.lock();
    taking_ = false;
  }

  const std::function<void(Item)> take_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<Item> items_;
  bool closed_ = false;
  bool taking_ = false;
  std::thread thread_;
};

}  // namespace quartet
