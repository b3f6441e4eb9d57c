#include "core/cancellation/cancellation.h"

#include <utility>

namespace quartet {

void Cancellation::Cancel(absl::Status reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!reason_.ok()) return;
  reason_ = std::move(reason);
  RunHooks();
}

void Cancellation::RunHooks() {
  for (const auto& [id, hook] : hooks_) hook();
  hooks_.clear();
}

absl::Status Cancellation::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return StatusLocked();
}

void Cancellation::PromiseToEnd() {
  std::lock_guard<std::mutex> lock(mutex_);
  promised_ = true;
}

bool Cancellation::End(absl::Status reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (promised_ && ending_.ok() && reason_.ok()) {
      ending_ = std::move(reason);
      if (give_up_scopes_ > 0) RunHooks();
      return true;
    }
  }
  Cancel(std::move(reason));
  return false;
}

absl::Status Cancellation::ending() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ending_;
}

Cancellation::Scope::Scope(Cancellation* cancellation, std::function<void()> hook) : cancellation_(cancellation) {
  std::lock_guard<std::mutex> lock(cancellation_->mutex_);
  id_ = cancellation_->next_id_++;
  if (cancellation_->StatusLocked().ok()) {
    cancellation_->hooks_[id_] = std::move(hook);
  } else {
    hook();
  }
}

// Takes the lock: when this returns, the hook does not run and will not run any more.
Cancellation::Scope::~Scope() {
  std::lock_guard<std::mutex> lock(cancellation_->mutex_);
  cancellation_->hooks_.erase(id_);
}

Cancellation::GiveUpScope::GiveUpScope(Cancellation* cancellation) : cancellation_(cancellation) {
  const std::lock_guard lock(cancellation_->mutex_);
  ++cancellation_->give_up_scopes_;
  if (!cancellation_->StatusLocked().ok()) cancellation_->RunHooks();
}

Cancellation::GiveUpScope::~GiveUpScope() {
  const std::lock_guard lock(cancellation_->mutex_);
  --cancellation_->give_up_scopes_;
}

}  // namespace quartet
