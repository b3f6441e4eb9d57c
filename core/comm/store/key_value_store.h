// A small shared store through which ranks find each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace quartet {

// Thread safe. Values are arbitrary bytes.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;

  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;

  // Stores `desired` where the key holds `expected` (or is absent and `expected` is empty). Returns what the key holds
  // then.
  virtual absl::StatusOr<std::string> CompareSet(const std::string& key, const std::string& expected,
                                                 const std::string& desired) = 0;

  // Waits until all keys exist; returns their values in order. DEADLINE_EXCEEDED names the missing keys.
  virtual absl::StatusOr<std::vector<std::string>> Wait(const std::vector<std::string>& keys,
                                                        absl::Duration timeout) = 0;

  // Adds to a decimal integer (absent = 0); returns the sum.
  virtual absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount) = 0;

  virtual absl::StatusOr<bool> Delete(const std::string& key) = 0;
};

}  // namespace quartet
