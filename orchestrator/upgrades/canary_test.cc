#include "orchestrator/upgrades/canary.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

CanaryNumbers Numbers(std::vector<std::vector<float>> numbers, bool relative = false) {
  return {.name = "numbers", .numbers = std::move(numbers), .tokens = {}, .relative = relative};
}

TEST(CompareCanary, TakesTheMeanDifferenceOfEachKind) {
  const std::vector<CanaryNumbers> before = {Numbers({{1, 2}, {3}}), Numbers({{100}}, /*relative=*/true)};
  EXPECT_TRUE(CompareCanary(before, before, 1e-9).ok());
  const std::vector<CanaryNumbers> after = {Numbers({{1, 2.3F}, {3}}), Numbers({{105}}, /*relative=*/true)};
  EXPECT_THAT(CompareCanary(before, after, 0.11).value(), AllOf(HasSubstr("numbers differ by 0.1 on average over 3"),
                                                                HasSubstr("numbers differ by 0.05 on average")));
  EXPECT_THAT(std::string(CompareCanary(before, after, 0.09).status().message()),
              AllOf(HasSubstr("differ by 0.1 "), HasSubstr("train.max_upgrade_diff_mean allows 0.09")));
}

TEST(CompareCanary, RefusesWhatIsNoNumberAndWhatIsMissing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(CompareCanary({Numbers({{1}})}, {Numbers({{nan}})}, 1e9).ok());
  EXPECT_FALSE(CompareCanary({Numbers({{1}}), Numbers({{1}})}, {Numbers({{1}})}, 1e9).ok());
}

TEST(CompareCanary, OfGreedyAnswersCountsWhatComesBeforeTheyPart) {
  CanaryNumbers before = Numbers({{-1, -2, -3}}), after = Numbers({{-1, -2.1F, -9}});
  before.tokens = {{5, 6, 7}};
  after.tokens = {{5, 8, 9}};
  EXPECT_THAT(CompareCanary({before}, {after}, 0.06).value(), HasSubstr("differ by 0.05 on average over 2"))
      << "a tie that fell otherwise";
  after = Numbers({{-1}});
  after.tokens = {{5}};
  EXPECT_FALSE(CompareCanary({before}, {after}, 0.9).ok()) << "an answer that ends early";
}

}  // namespace
}  // namespace quartet
