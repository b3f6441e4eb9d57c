#include "core/comm/store/local_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace quartet {
namespace {

TEST(LocalStore, WaitReturnsValuesInTheOrderOfTheKeys) {
  auto store = MakeLocalStore();
  ASSERT_TRUE(store->Set("a", "1").ok());
  std::thread late([&] { ASSERT_TRUE(store->Set("b", std::string("x\0y", 3)).ok()); });
  auto values = store->Wait({"b", "a"}, absl::Seconds(30));
  late.join();
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_THAT(*values, testing::ElementsAre(std::string("x\0y", 3), "1"));
}

TEST(LocalStore, WaitNamesTheKeysThatNeverCame) {
  auto store = MakeLocalStore();
  ASSERT_TRUE(store->Set("here", "1").ok());
  auto values = store->Wait({"here", "rank/1", "rank/2"}, absl::Milliseconds(20));
  EXPECT_EQ(values.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(values.status().message()), testing::HasSubstr("rank/1, rank/2"));
  EXPECT_THAT(std::string(values.status().message()), testing::Not(testing::HasSubstr("here")));
}

TEST(LocalStore, AddCountsFromZeroUnderContention) {
  auto store = MakeLocalStore();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) ASSERT_TRUE(store->Add("n", 1).ok());
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(*store->Add("n", -1), 3999);
}

TEST(LocalStore, AddRefusesAValueThatIsNoInteger) {
  auto store = MakeLocalStore();
  ASSERT_TRUE(store->Set("n", "many").ok());
  EXPECT_EQ(store->Add("n", 1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LocalStore, CompareSetStoresOnlyOverWhatWasExpected) {
  auto store = MakeLocalStore();
  EXPECT_EQ(*store->CompareSet("k", "something", "x"), "");
  EXPECT_EQ(*store->CompareSet("k", "", "first"), "first");
  EXPECT_EQ(*store->CompareSet("k", "", "second"), "first");
  EXPECT_EQ(*store->CompareSet("k", "first", "second"), "second");
}

TEST(LocalStore, DeleteTellsWhetherTheKeyWasThere) {
  auto store = MakeLocalStore();
  ASSERT_TRUE(store->Set("k", "v").ok());
  EXPECT_TRUE(*store->Delete("k"));
  EXPECT_FALSE(*store->Delete("k"));
}

}  // namespace
}  // namespace quartet
