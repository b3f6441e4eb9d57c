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

  // OK until cancelled, then the reason; while a GiveUpScope lives, also once the run is asked to end.
  absl::Status status() const;

  // From now on whoever drives the run asks for `ending` between its steps, and ends it in good order when told to.
  void PromiseToEnd();
  // That the run is to end: asks for it and returns true where it was promised, and not asked for before; else cancels.
  bool End(absl::Status reason);
  // OK until the run is asked to end, then the reason.
  absl::Status ending() const;

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

  // While it lives, to be asked to end is to be cancelled for what has a Scope: for work that may be left to the run
  // that goes on, and that no checkpoint is to wait for.
  class GiveUpScope {
   public:
    explicit GiveUpScope(Cancellation* cancellation);
    ~GiveUpScope();
    GiveUpScope(const GiveUpScope&) = delete;
    GiveUpScope& operator=(const GiveUpScope&) = delete;

   private:
    Cancellation* cancellation_;
  };

 private:
  // Under the lock, as what follows.
  const absl::Status& StatusLocked() const { return reason_.ok() && give_up_scopes_ > 0 ? ending_ : reason_; }
  void RunHooks();

  mutable std::mutex mutex_;
  absl::Status reason_;
  bool promised_ = false;
  absl::Status ending_;
  int give_up_scopes_ = 0;  // that are alive
  uint64_t next_id_ = 0;
  std::map<uint64_t, std::function<void()>> hooks_;
};

}  // namespace quartet
