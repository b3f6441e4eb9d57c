#include "core/data/label.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quartet {
namespace {

using ::testing::HasSubstr;

TEST(ExtractLabel, KeepsTheAnswerByDefault) {
  EXPECT_EQ(*ExtractLabel(" 1 #### 2 ", ""), " 1 #### 2 ");
  EXPECT_EQ(*ExtractLabel(" 1 #### 2 ", "none"), " 1 #### 2 ");
}

TEST(ExtractLabel, TakesWhatFollowsTheLastMarker) {
  EXPECT_EQ(*ExtractLabel("He has 2 + 2 = 4.\n#### 4\n", "after_####"), "4");
  EXPECT_EQ(*ExtractLabel("#### 1\n####  1,200 apples \r\n", "after_####"), "1,200 apples");
  EXPECT_EQ(*ExtractLabel("####7", "after_####"), "7");
}

TEST(ExtractLabel, RefusesAnAnswerWithoutALabel) {
  EXPECT_EQ(ExtractLabel("4", "after_####").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ExtractLabel("4 #### \n", "after_####").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ExtractLabel, RefusesANameItDoesNotKnow) {
  const auto status = ExtractLabel("4", "boxed").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"boxed\""));
}

}  // namespace
}  // namespace quartet
