// The connections of an HTTP server, so many that one more always finds a place. Knows no HTTP.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace quartet {

// Where there are more than `limit`, the connection on which nothing has moved for longest is closed, unless somebody
// works for it: those that do are to be fewer than `limit`. A connection is known by any pointer. Thread safe.
class Connections {
 public:
  explicit Connections(size_t limit) : limit_(limit) {}

  // `close`, called under a lock, lets it end soon, which Closed is told then.
  void Opened(const void* connection, std::function<void()> close);
  void Closed(const void* connection);
  // Something has come on it.
  void Moved(const void* connection);
  // Whether somebody works for it.
  void SetBusy(const void* connection, bool busy);

  using Clock = std::chrono::steady_clock;
  // By when what is going on on it is to be over; nothing: it may take as long as it does.
  void SetDeadline(const void* connection, std::optional<Clock::time_point> deadline);
  // Closes those whose deadline was before `now`, whoever works for them.
  void CloseOverdue(Clock::time_point now);

 private:
  struct Entry {
    const void* connection;
    std::function<void()> close;
    bool busy = false;
    bool closing = false;
    std::optional<Clock::time_point> deadline;
  };
  void Close(Entry* entry);  // under the lock

  const size_t limit_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::list<Entry> entries_;  // what moved last stands last
  std::unordered_map<const void*, std::list<Entry>::iterator> places_;
  size_t closing_ = 0;
};

}  // namespace quartet
