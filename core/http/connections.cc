#include "core/http/connections.h"

#include <algorithm>
#include <utility>

namespace quartet {

void Connections::Opened(const void* connection, std::function<void()> close) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({.connection = connection, .close = std::move(close)});
  places_[connection] = std::prev(entries_.end());
  if (entries_.size() - closing_ <= limit_) return;
  const auto idle =
      std::find_if(entries_.begin(), entries_.end(), [](const Entry& entry) { return !entry.busy && !entry.closing; });
  if (idle != entries_.end()) Close(&*idle);
}

void Connections::Closed(const void* connection) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(connection);
  closing_ -= found->second->closing;
  entries_.erase(found->second);
  places_.erase(found);
}

void Connections::Moved(const void* connection) {
  const std::lock_guard lock(mutex_);
  entries_.splice(entries_.end(), entries_, places_.at(connection));
}

void Connections::SetBusy(const void* connection, bool busy) {
  const std::lock_guard lock(mutex_);
  places_.at(connection)->busy = busy;
}

void Connections::SetDeadline(const void* connection, std::optional<Clock::time_point> deadline) {
  const std::lock_guard lock(mutex_);
  places_.at(connection)->deadline = deadline;
}

void Connections::CloseOverdue(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.deadline.has_value() && *entry.deadline < now && !entry.closing) Close(&entry);
  }
}

void Connections::Close(Entry* entry) {
  entry->closing = true;
  ++closing_;
  entry->close();
}

}  // namespace quartet
