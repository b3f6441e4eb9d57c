#include "orchestrator/clients/cancellation.h"

#include <utility>

namespace quartet {

void Cancellation::Cancel(absl::Status reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!reason_.ok()) return;
  reason_ = std::move(reason);
  for (const auto& [id, hook] : hooks_) hook();
  hooks_.clear();
}

absl::Status Cancellation::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return reason_;
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
  if (cancellation_->reason_.ok()) {
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

}  // namespace quartet
