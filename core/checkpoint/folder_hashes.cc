#include "core/checkpoint/folder_hashes.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/files/input_file.h"
#include "core/base/hash.h"
#include "core/base/status_macros.h"
#include "core/errors/exceptions.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPartBytes = size_t{1} << 20;
constexpr size_t kMostThreads = 8;

absl::StatusOr<FileHash> HashFile(const std::string& path, const std::function<absl::Status()>& proceed) {
  QUARTET_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  FileHash result;
  std::string part(kPartBytes, '\0');
  for (;;) {
    if (proceed) QUARTET_RETURN_IF_ERROR(proceed());
    // Parts are whole but for the last, so that the hash is that of the bytes.
    QUARTET_ASSIGN_OR_RETURN(const size_t filled, file.ReadAt(result.bytes, part.size(), part.data()));
    if (filled == 0) return result;
    result.hash = HashBytes(std::string_view(part).substr(0, filled), result.hash);
    result.bytes += filled;
    if (filled < part.size()) return result;
  }
}

absl::StatusOr<FolderHashes> HashFiles(const std::string& folder, const std::vector<std::string>& names,
                                       const std::function<absl::Status()>& proceed) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  FolderHashes hashes;   // under the lock
  absl::Status failure;  // likewise
  const auto work = [&] {
    for (size_t i = next++; i < names.size(); i = next++) {
      const auto one = CatchAll([&] { return HashFile(absl::StrCat(folder, "/", names[i]), proceed); });
      const std::lock_guard lock(mutex);
      if (one.ok()) {
        hashes[names[i]] = *one;
      } else {
        failure.Update(one.status());
        next = names.size();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (size_t i = 1; i < std::min(kMostThreads, names.size()); ++i) others.emplace_back(work);
    work();
  }
  QUARTET_RETURN_IF_ERROR(failure);
  return hashes;
}

}  // namespace

absl::StatusOr<FolderHashes> HashFolder(const std::string& folder, const std::function<absl::Status()>& proceed) {
  std::vector<std::string> names;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  while (!error && entry != fs::recursive_directory_iterator()) {
    std::error_code no_file;  // a link to nothing is none
    if (entry->is_regular_file(no_file)) names.push_back(entry->path().lexically_relative(folder).string());
    entry.increment(error);
  }
  if (error) return absl::UnavailableError(absl::StrCat(folder, ": cannot be read: ", error.message()));
  return HashFiles(folder, names, proceed);
}

absl::Status VerifyFolder(const std::string& folder, const FolderHashes& expected,
                          const std::function<absl::Status()>& proceed) {
  std::vector<std::string> names;
  for (const auto& [name, file] : expected) {
    const std::string path = absl::StrCat(folder, "/", name);
    std::error_code error;
    const uintmax_t bytes = fs::file_size(path, error);
    if (error) return absl::DataLossError(absl::StrCat(path, ": ", error.message()));
    if (bytes != file.bytes) {
      return absl::DataLossError(
          absl::StrCat(path, ": has ", uint64_t{bytes}, " bytes, and had ", file.bytes, " when it was saved"));
    }
    names.push_back(name);
  }
  QUARTET_ASSIGN_OR_RETURN(const FolderHashes hashes, HashFiles(folder, names, proceed));
  for (const auto& [name, file] : expected) {
    if (hashes.at(name) == file) continue;
    return absl::DataLossError(
        absl::StrCat(folder, "/", name, ": does not have the bytes that it had when it was saved"));
  }
  return absl::OkStatus();
}

}  // namespace quartet
