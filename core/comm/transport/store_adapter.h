// Shows a KeyValueStore to c10d, whose backends meet through a c10d::Store.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "absl/time/time.h"
#include "core/comm/store/key_value_store.h"

namespace quartet {

// Keys are prefixed with `prefix`. No wait lasts longer than `timeout`. Errors become exceptions, as c10d expects.
class StoreAdapter : public c10d::Store {
 public:
  // `store` must outlive this.
  StoreAdapter(KeyValueStore* store, std::string prefix, absl::Duration timeout);

  c10::intrusive_ptr<c10d::Store> clone() override;
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  using c10d::Store::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;  // throws: no backend asks
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  bool hasExtendedApi() const override { return false; }

 private:
  std::vector<std::string> Prefixed(const std::vector<std::string>& keys) const;

  KeyValueStore* const store_;
  const std::string prefix_;
};

}  // namespace quartet
