#include "core/http/disconnect_watcher.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>

#include "core/base/logging.h"

namespace quartet {
namespace {

constexpr uint64_t kWake = 0;

}  // namespace

DisconnectWatcher::DisconnectWatcher() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC)) {
  QUARTET_CHECK(epoll_ >= 0 && wake_ >= 0) << strerror(errno);
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = kWake}};
  QUARTET_CHECK(epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) == 0) << strerror(errno);
  thread_ = std::thread([this] { Loop(); });
}

DisconnectWatcher::~DisconnectWatcher() {
  QUARTET_CHECK(eventfd_write(wake_, 1) == 0);
  thread_.join();
  close(wake_);
  close(epoll_);
}

void DisconnectWatcher::Loop() {
  std::array<epoll_event, 64> events;
  for (;;) {
    const int count = epoll_wait(epoll_, events.data(), events.size(), -1);
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kWake) return;
      std::stop_source source(std::nostopstate);
      {
        const std::lock_guard lock(mutex_);
        const auto found = watched_.find(events[i].data.u64);
        if (found == watched_.end()) continue;
        source = found->second;
      }
      source.request_stop();
    }
  }
}

DisconnectWatcher::Watch::Watch(DisconnectWatcher* watcher, int fd) : disconnects_(*watcher), fd_(fd) {
  {
    const std::lock_guard lock(disconnects_.mutex_);
    id_ = ++disconnects_.last_id_;
    disconnects_.watched_.emplace(id_, source_);
  }
  epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data = {.u64 = id_}};
  // A socket that cannot be watched is as good as one that is gone.
  if (epoll_ctl(disconnects_.epoll_, EPOLL_CTL_ADD, fd, &event) != 0) source_.request_stop();
}

DisconnectWatcher::Watch::~Watch() {
  epoll_ctl(disconnects_.epoll_, EPOLL_CTL_DEL, fd_, nullptr);
  const std::lock_guard lock(disconnects_.mutex_);
  disconnects_.watched_.erase(id_);
}

}  // namespace quartet
