#include "core/comm/testing/folder_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"

namespace quartet {
namespace {

// Holds the folder's lock.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder)
      : file_(open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    flock(file_, LOCK_EX);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock() { close(file_); }

 private:
  const int file_;
};

class FolderStore : public KeyValueStore {
 public:
  explicit FolderStore(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Set(const std::string& key, const std::string& value) override {
    FolderLock lock(folder_);
    return AtomicWriteFile(Path(key), value);
  }

  absl::StatusOr<std::string> CompareSet(const std::string& key, const std::string& expected,
                                         const std::string& desired) override {
    FolderLock lock(folder_);
    auto value = ReadFile(Path(key));
    if (!value.ok() && !expected.empty()) return std::string();
    if (value.ok() && *value != expected) return value;
    QUARTET_RETURN_IF_ERROR(AtomicWriteFile(Path(key), desired));
    return desired;
  }

  absl::StatusOr<std::vector<std::string>> Wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    const Deadline deadline = Deadline::In(timeout);
    std::vector<std::string> values;
    for (const std::string& key : keys) {
      while (true) {
        auto value = ReadFile(Path(key));
        if (value.ok()) {
          values.push_back(*std::move(value));
          break;
        }
        if (deadline.passed()) return absl::DeadlineExceededError(absl::StrCat("no value for ", key));
        absl::SleepFor(absl::Milliseconds(5));
      }
    }
    return values;
  }

  absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount) override {
    FolderLock lock(folder_);
    int64_t sum = 0;
    if (auto value = ReadFile(Path(key)); value.ok() && !absl::SimpleAtoi(*value, &sum)) {
      return absl::InvalidArgumentError(absl::StrCat(key, " holds no integer"));
    }
    sum += amount;
    QUARTET_RETURN_IF_ERROR(AtomicWriteFile(Path(key), absl::StrCat(sum)));
    return sum;
  }

  absl::StatusOr<bool> Delete(const std::string& key) override { return unlink(Path(key).c_str()) == 0; }

 private:
  // Keys have slashes.
  std::string Path(const std::string& key) const {
    std::string name;
    for (const unsigned char c : key)
      name += isalnum(c) != 0 ? std::string(1, static_cast<char>(c)) : absl::StrCat("_", static_cast<int>(c), "_");
    return folder_ + "/key_" + name;
  }

  const std::string folder_;
};

}  // namespace

std::unique_ptr<KeyValueStore> MakeFolderStore(const std::string& folder) {
  return std::make_unique<FolderStore>(folder);
}

}  // namespace quartet
