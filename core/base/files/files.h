// Small whole files, folders and the paths that users give.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quartet {

// Errors of all functions name the path and the operating system's reason. Thread safe.

// The whole of a regular file. Errors as InputFile's (core/base/files/input_file.h).
absl::StatusOr<std::string> ReadFile(const std::string& path);
// INVALID_ARGUMENT where it is longer than `max_bytes`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes);
// FAILED_PRECONDITION where others than the file's owner may read it too.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path);

// Readers see the old content or the new, never a part: written beside, synced to disk, then renamed over `path`. The
// file has the mode `mode`, less what the umask takes, whatever that of an old one was.
absl::Status AtomicWriteFile(const std::string& path, std::string_view content, int mode = 0644);

// Makes what was created, renamed or removed in the folder `path` durable.
absl::Status SyncFolder(const std::string& path);
// The same of the folder that the file `path` is in.
absl::Status SyncFolderOf(const std::string& path);

// Creates `path` and the folders above it; existing ones are left alone.
absl::Status MakeDirs(const std::string& path);

// An absolute path for one that a user gave: relative ones are relative to the folder the user is in, which is
// BUILD_WORKING_DIRECTORY under `bazel run`. Without a slash at its end. "" stays "".
std::string ResolveUserPath(std::string_view path);

// The folder of the running program's file.
std::string ExecutableFolder();

}  // namespace quartet
