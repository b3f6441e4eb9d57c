// What waits for other ranks does so as long as it was told to, whatever is done to the host's clock meanwhile.

#include "core/base/testing/wall_clock.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/comm/process_group.h"
#include "core/comm/store/local_store.h"
#include "core/comm/testing/folder_store.h"

namespace quartet {
namespace {

void SetWallClockAhead() { wall_clock_ahead += 3600; }

// Sets the wall clock ahead before each wait, and says for how long the last one was to be.
class DisturbedStore final : public KeyValueStore {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override { return store_->Set(key, value); }
  absl::StatusOr<std::string> CompareSet(const std::string& key, const std::string& expected,
                                         const std::string& desired) override {
    return store_->CompareSet(key, expected, desired);
  }
  absl::StatusOr<std::vector<std::string>> Wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    SetWallClockAhead();
    waited = timeout;
    return store_->Wait(keys, absl::ZeroDuration());
  }
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount) override { return store_->Add(key, amount); }
  absl::StatusOr<bool> Delete(const std::string& key) override { return store_->Delete(key); }

  absl::Duration waited;

 private:
  const std::unique_ptr<KeyValueStore> store_ = MakeLocalStore();
};

TEST(WallClock, IsSetByThisTest) {
  const absl::Time before = absl::Now();
  SetWallClockAhead();
  EXPECT_GT(absl::Now() - before, absl::Minutes(59));
}

TEST(WallClock, CutsNoWaitForTheRanksOfAGroupShort) {
  DisturbedStore store;
  ProcessGroupOptions options;
  options.rank = 0;
  options.size = 2;
  options.timeout = absl::Minutes(10);
  EXPECT_FALSE(MakeProcessGroup(&store, options).ok()) << "rank 1 never comes";
  EXPECT_GT(store.waited, absl::Minutes(5));
}

TEST(WallClock, CutsNoWaitForAFolderShort) {
  std::string folder = testing::TempDir() + "/store_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::unique_ptr<KeyValueStore> store = MakeFolderStore(folder);
  absl::StatusOr<std::vector<std::string>> found = absl::UnknownError("not there yet");
  std::thread waiter([&] { found = store->Wait({"key"}, absl::Minutes(10)); });
  absl::SleepFor(absl::Milliseconds(50));
  SetWallClockAhead();
  absl::SleepFor(absl::Milliseconds(50));  // it looks every 5 ms
  EXPECT_TRUE(store->Set("key", "value").ok());
  waiter.join();
  EXPECT_TRUE(found.ok()) << found.status();
}

}  // namespace
}  // namespace quartet
