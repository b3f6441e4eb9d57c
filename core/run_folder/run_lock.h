// One orchestrator a run folder.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "core/base/files/fd.h"

namespace quartet {

// The name of the lock's file in a run folder.
inline constexpr char kRunLockName[] = "run.lock";

// Held while it lives, and no longer than its process: the file stays behind, its lock does not. The file is its user's
// alone (0600): whoever can open it, if only to read, can hold it.
class RunLock {
 public:
  // ABORTED names who holds it: process, host and since when. UNIMPLEMENTED where the file system has no
  // locks.
  static absl::StatusOr<std::unique_ptr<RunLock>> Take(const std::string& run_dir);
  // Who holds it: process, host and since when; nothing where nobody does. Of another user's run that cannot be told,
  // and that is what it says.
  static std::optional<std::string> HolderOf(const std::string& run_dir);

 private:
  explicit RunLock(Fd file) : file_(std::move(file)) {}
  const Fd file_;
};

}  // namespace quartet
