#include "core/http/connections.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ConnectionsTest : public ::testing::Test {
 protected:
  const void* Name(int i) const { return &names_[i]; }
  void Open(int i) {
    connections_.Opened(Name(i), [this, i] { closed_.push_back(i); });
  }
  Connections connections_{3};
  std::vector<int> closed_;

 private:
  char names_[16] = {};
};

TEST_F(ConnectionsTest, CloseTheOneOnWhichNothingHasMovedForLongest) {
  for (int i = 0; i < 3; ++i) Open(i);
  EXPECT_THAT(closed_, IsEmpty());
  connections_.Moved(Name(0));
  Open(3);
  EXPECT_THAT(closed_, ElementsAre(1));
  // It is on its way out, and does not count.
  Open(4);
  EXPECT_THAT(closed_, ElementsAre(1, 2));
  connections_.Closed(Name(1));
  connections_.Closed(Name(2));
  connections_.Closed(Name(0));
  Open(5);
  EXPECT_THAT(closed_, ElementsAre(1, 2));
  Open(6);
  EXPECT_THAT(closed_, ElementsAre(1, 2, 3));
}

TEST_F(ConnectionsTest, KeepThoseThatSomebodyWorksFor) {
  for (int i = 0; i < 3; ++i) Open(i);
  connections_.SetBusy(Name(0), true);
  connections_.SetBusy(Name(1), true);
  Open(3);
  EXPECT_THAT(closed_, ElementsAre(2));
  connections_.SetBusy(Name(0), false);
  Open(4);
  EXPECT_THAT(closed_, ElementsAre(2, 0));
  connections_.SetBusy(Name(3), true);
  connections_.SetBusy(Name(4), true);
  connections_.Closed(Name(0));
  connections_.Closed(Name(2));
  Open(5);
  EXPECT_THAT(closed_, ElementsAre(2, 0, 5));
}

TEST_F(ConnectionsTest, CloseThoseThatAreOverdueOnce) {
  for (int i = 0; i < 3; ++i) Open(i);
  const Connections::Clock::time_point now = Connections::Clock::now();
  connections_.SetBusy(Name(0), true);
  connections_.SetDeadline(Name(0), now);
  connections_.SetDeadline(Name(1), now + std::chrono::seconds(1));
  connections_.CloseOverdue(now);
  EXPECT_THAT(closed_, IsEmpty());
  connections_.SetDeadline(Name(1), std::nullopt);
  connections_.CloseOverdue(now + std::chrono::seconds(2));
  EXPECT_THAT(closed_, ElementsAre(0));
  connections_.CloseOverdue(now + std::chrono::seconds(2));
  EXPECT_THAT(closed_, ElementsAre(0));
  // It is on its way out, and does not count.
  Open(3);
  EXPECT_THAT(closed_, ElementsAre(0));
}

}  // namespace
}  // namespace quartet
