// Which process this is, so that others on its host can see whether it still lives. LibTorch-free.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace quartet {

struct ProcessIdentity {
  // Equal for processes that can share memory and see each other's ids: same boot, namespace of ids and user. Empty
  // where that cannot be told.
  std::string host;
  int64_t pid = 0;
  int64_t start_time = 0;  // tells a process from a later one with the same id

  // Without spaces, and back; INVALID_ARGUMENT.
  std::string ToString() const;
  static absl::StatusOr<ProcessIdentity> Parse(const std::string& text);
};

ProcessIdentity OwnProcessIdentity();

// False if it has ended, reaped or not; a stopped one lives. Of a process of the same `host` only.
bool IsAlive(const ProcessIdentity& process);

}  // namespace quartet
