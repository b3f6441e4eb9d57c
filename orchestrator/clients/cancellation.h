// Ends what is running when the run has to end: Ctrl-C, a service that died.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "absl/status/status.h"

namespace quartet {

// Thread safe. Outlives every Scope on it.
class Cancellation {
 public:
  // The first reason stays. Runs the hooks of all scopes that are alive.
  void Cancel(absl::Status reason);

  // OK until cancelled, then the reason.
  absl::Status status() const;

  // While it lives, `hook` runs (at most once, on the cancelling thread) when the run is cancelled; at once if it is
  // cancelled already. The hook must be quick and must not use the Cancellation.
  class Scope {
   public:
    Scope(Cancellation* cancellation, std::function<void()> hook);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Cancellation* cancellation_;
    uint64_t id_;
  };

 private:
  mutable std::mutex mutex_;
  absl::Status reason_;
  uint64_t next_id_ = 0;
  std::map<uint64_t, std::function<void()>> hooks_;
};

}  // namespace quartet
