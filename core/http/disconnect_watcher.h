// Notices that the other ends of sockets leave. One thread for all of them.
#pragma once

#include <cstdint>
#include <mutex>
#include <stop_token>
#include <thread>
#include <unordered_map>

#include "absl/status/statusor.h"

namespace quartet {

// Thread safe.
class DisconnectWatcher {
 public:
  DisconnectWatcher();
  ~DisconnectWatcher();

  // While it lives, `token` is requested to stop once the other end of `fd` has closed the connection, or only its
  // sending half: what it does next cannot be told from leaving. Ends before the file is closed.
  class Watch {
   public:
    Watch(DisconnectWatcher* watcher, int fd);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    std::stop_token token() const { return source_.get_token(); }

   private:
    DisconnectWatcher& disconnects_;
    const int fd_;
    std::stop_source source_;
    uint64_t id_ = 0;
  };

 private:
  void Loop();

  const int epoll_;
  const int wake_;  // an event file: the thread is to end
  std::mutex mutex_;
  // Guarded by mutex_.
  std::unordered_map<uint64_t, std::stop_source> watched_;
  uint64_t last_id_ = 0;
  std::thread thread_;
};

}  // namespace quartet
