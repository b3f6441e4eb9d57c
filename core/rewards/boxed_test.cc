#include "core/rewards/boxed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

TEST(Boxes, AreClosedByTheirOwnBraces) {
  EXPECT_THAT(LastBoxed("\\boxed{1} so \\boxed{\\frac{1}{2}} it is"), Optional(std::string_view("\\frac{1}{2}")));
  EXPECT_THAT(LastBoxed("\\boxed{\\{1, 2\\}}"), Optional(std::string_view("\\{1, 2\\}")));
  EXPECT_EQ(LastBoxed("\\boxed{1} and \\boxed{2"), std::nullopt);
  EXPECT_EQ(LastBoxed("boxed{1}"), std::nullopt);
  EXPECT_THAT(LastBoxed("\\boxed {2} with \\alpha"), Optional(std::string_view("2")));
  EXPECT_THAT(LastBoxed("\\boxed{1}, \\fbox{\\alpha}"), Optional(std::string_view("\\alpha")));
  EXPECT_THAT(LastBoxed("\\boxed{1} so \\boxed"), Optional(std::string_view("1")));
  EXPECT_THAT(BoxedContents("\\boxed{1}, \\fbox{\\boxed{2}} and \\boxed{3"), ElementsAre("1", "\\boxed{2}"));
  EXPECT_THAT(BoxedContents("\\boxed {1}, \\fbox\n{2}"), ElementsAre("1", "2"));
  EXPECT_THAT(BoxedContents(std::string(100000, '{') + "\\boxed{"), IsEmpty());
}

}  // namespace
}  // namespace quartet
