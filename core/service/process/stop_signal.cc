#include "core/service/process/stop_signal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "core/base/logging.h"
#include "core/service/process/child_process.h"

namespace quartet {

struct StopSignal::Impl {
  int signal_fd = -1;
  int request_fd = -1;
  int parent_fd = -1;  // readable once the parent says why to stop, or (at its end) is gone
  std::atomic<bool> ends_by_sigterm{true}, left_sigterm{false};
  std::mutex mutex;
  std::optional<std::string> reason;  // guarded by mutex
};

StopSignal::StopSignal() : impl_(new Impl) {
  KeepEndsOfChildren();
  sigset_t signals;
  sigemptyset(&signals);
  for (int s : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&signals, s);
  // A terminal that is closed asks as SIGTERM does, but for what nohup has started.
  struct sigaction hang_up = {};
  if (sigaction(SIGHUP, nullptr, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  impl_->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  impl_->request_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (const char* fd = getenv("QUARTET_PARENT_FD"); fd != nullptr) {
    char* end = nullptr;
    const long number = strtol(fd, &end, 10);
    // Ours alone: a child of this process must not take it for its own parent's.
    if (end != fd && *end == '\0' && number > 2 && fcntl(number, F_SETFD, FD_CLOEXEC) == 0) impl_->parent_fd = number;
  }
}

StopSignal::~StopSignal() {
  close(impl_->signal_fd);
  close(impl_->request_fd);
  delete impl_;
}

void StopSignal::Request(const std::string& reason) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->reason.has_value()) return;
  impl_->reason = reason;
  const uint64_t one = 1;
  (void)!write(impl_->request_fd, &one, sizeof(one));
}

void StopSignal::Tell(const std::string& reason) {
  // Whoever gave another kind of stream, such as a pipe, is told nothing.
  if (impl_->parent_fd >= 0) {
    (void)!send(impl_->parent_fd, reason.data(), std::min<size_t>(reason.size(), 1024), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

void StopSignal::LeaveSigtermToOrchestrator() { impl_->ends_by_sigterm = false; }
bool StopSignal::left_sigterm() const { return impl_->left_sigterm; }

std::optional<std::string> StopSignal::Wait(absl::Duration timeout) {
  pollfd fds[] = {{impl_->signal_fd, POLLIN, 0}, {impl_->request_fd, POLLIN, 0}, {impl_->parent_fd, POLLIN, 0}};
  // poll ignores descriptors below 0: without a parent's pipe the third is never ready.
  const int64_t ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(timeout), 0, 1 << 30);
  if (poll(fds, 3, static_cast<int>(ms)) < 0 && errno != EINTR) return "poll failed";
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    if (impl_->reason.has_value()) return impl_->reason;
  }
  if (fds[2].revents != 0) {
    char reason[1024];
    const ssize_t size = read(impl_->parent_fd, reason, sizeof(reason));
    return size > 0 ? std::string(reason, size) : "the parent process is gone";
  }
  signalfd_siginfo info;
  while (read(impl_->signal_fd, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGINT) return "SIGINT";
    if (info.ssi_signo != SIGTERM && info.ssi_signo != SIGHUP) continue;
    const char* const name = info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGHUP";
    if (impl_->ends_by_sigterm) return name;
    if (impl_->left_sigterm.exchange(true)) continue;
    QUARTET_LOG(kInfo) << name
                       << ": this goes on until no orchestrator is there, which makes a checkpoint first "
                          "(train.save_on_sigterm); SIGINT ends it";
  }
  return std::nullopt;
}

}  // namespace quartet
