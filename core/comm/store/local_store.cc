#include "core/comm/store/local_store.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quartet {
namespace {

class LocalStore : public KeyValueStore {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> CompareSet(const std::string& key, const std::string& expected,
                                         const std::string& desired) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = values_.find(key);
    if (found == values_.end()) {
      if (!expected.empty()) return std::string();
      found = values_.emplace(key, desired).first;
    } else if (found->second == expected) {
      found->second = desired;
    }
    changed_.notify_all();
    return found->second;
  }

  absl::StatusOr<std::vector<std::string>> Wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    // A year stands for "forever": adding the largest duration to now would overflow.
    timeout = std::min(timeout, absl::Hours(24 * 365));
    const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_until(lock, deadline, [&] { return Missing(keys).empty(); })) {
      // Not for how long: it may be a part of a longer wait.
      return absl::DeadlineExceededError(absl::StrCat("no value for ", absl::StrJoin(Missing(keys), ", ")));
    }
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(values_.at(key));
    return values;
  }

  absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount) override {
    std::lock_guard<std::mutex> lock(mutex_);
    int64_t sum = 0;
    auto found = values_.find(key);
    if (found != values_.end() && !absl::SimpleAtoi(found->second, &sum)) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot add to ", key, ": its value is '", found->second, "', not a decimal integer"));
    }
    sum += amount;
    values_[key] = absl::StrCat(sum);
    changed_.notify_all();
    return sum;
  }

  absl::StatusOr<bool> Delete(const std::string& key) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return values_.erase(key) > 0;
  }

 private:
  std::vector<std::string> Missing(const std::vector<std::string>& keys) const {
    std::vector<std::string> missing;
    for (const std::string& key : keys) {
      if (values_.count(key) == 0) missing.push_back(key);
    }
    return missing;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;  // guarded by mutex_
};

}  // namespace

std::unique_ptr<KeyValueStore> MakeLocalStore() { return std::make_unique<LocalStore>(); }

}  // namespace quartet
