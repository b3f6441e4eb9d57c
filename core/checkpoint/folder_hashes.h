// Hashes of what is in a folder, as it was written. They find damage; they are no defence against forgery.
// LibTorch-free. Thread safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quartet {

struct FileHash {
  uint64_t bytes = 0;
  uint64_t hash = 0;
  bool operator==(const FileHash&) const = default;
};
using FolderHashes = std::map<std::string, FileHash>;  // by path in the folder

// Reads all files of `folder` and its folders, several at a time. `proceed`, if given, is asked before each part that
// is read, by any of the threads that read; its error is the result. UNAVAILABLE names a file that cannot be read.
absl::StatusOr<FolderHashes> HashFolder(const std::string& folder,
                                        const std::function<absl::Status()>& proceed = nullptr);

// The same of the files that `expected` names alone: others do not matter. DATA_LOSS names a file that is not there or
// is another.
absl::Status VerifyFolder(const std::string& folder, const FolderHashes& expected,
                          const std::function<absl::Status()>& proceed = nullptr);

}  // namespace quartet
