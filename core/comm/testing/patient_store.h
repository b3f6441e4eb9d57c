// A store in which ranks may take longer to come together than one of their collectives may.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/store/key_value_store.h"

namespace quartet {

class PatientStore : public KeyValueStore {
 public:
  explicit PatientStore(std::unique_ptr<KeyValueStore> store) : store_(std::move(store)) {}

  absl::Status Set(const std::string& key, const std::string& value) override { return store_->Set(key, value); }
  absl::StatusOr<std::string> CompareSet(const std::string& key, const std::string& expected,
                                         const std::string& desired) override {
    return store_->CompareSet(key, expected, desired);
  }
  absl::StatusOr<std::vector<std::string>> Wait(const std::vector<std::string>& keys, absl::Duration) override {
    return store_->Wait(keys, absl::Seconds(60));
  }
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount) override { return store_->Add(key, amount); }
  absl::StatusOr<bool> Delete(const std::string& key) override { return store_->Delete(key); }

 private:
  const std::unique_ptr<KeyValueStore> store_;
};

}  // namespace quartet
