#include "core/rewards/rules/number.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quartet {
namespace {

using ::testing::HasSubstr;

float Match(std::string_view response, std::string_view label) {
  const absl::StatusOr<float> reward = NumberMatch(response, label);
  EXPECT_TRUE(reward.ok()) << reward.status();
  return reward.value_or(-1);
}

TEST(ExactMatch, ComparesTextsAndLeavesWhiteSpaceAroundThemAside) {
  EXPECT_EQ(ExactMatch(" cba\n", "cba"), 1);
  EXPECT_EQ(ExactMatch("cba", "cba "), 1);
  EXPECT_EQ(ExactMatch("c ba", "cba"), 0);
  EXPECT_EQ(ExactMatch("CBA", "cba"), 0);
  EXPECT_EQ(ExactMatch("", "cba"), 0);
}

TEST(NumberRule, TakesTheNumberAfterTheLastMark) {
  EXPECT_EQ(Match("48/2 = 24, so #### 72", "72"), 1);
  EXPECT_EQ(Match("#### 72 no, wait\n#### 71", "72"), 0);
  EXPECT_EQ(Match("#### 71\n####72", "72"), 1);
  EXPECT_EQ(Match("#### 72 eggs, as 70 + 2", "72"), 1);
  EXPECT_EQ(Match("#### $72.", "72"), 1);
  EXPECT_EQ(Match("#### the answer is 72", "72"), 1);
  EXPECT_EQ(Match("####", "72"), 0);
  for (const char* same : {"#### **72**", "\\boxed{72^\\circ}", "\\boxed{\\text{72}}", "\\boxed{x = 72}"}) {
    EXPECT_EQ(Match(same, "72"), 1) << same;
  }
  EXPECT_EQ(Match("#### 7\\,200", "7200"), 1);
  EXPECT_EQ(Match("#### 72 500", "72"), 0);
  EXPECT_EQ(Match("#### 72 500 eggs", "72500"), 1);
  // Headings are none.
  EXPECT_EQ(Match("#### Step 1\nAdd.\n#### 2. Result\nIt is \\boxed{72}.", "72"), 1);
  EXPECT_EQ(Match("#### Result\n\\boxed{72}\n#### 2. Check\n70 + 2 = 72", "72"), 1);
  EXPECT_EQ(Match("\\boxed{72}\n#### 71", "72"), 0);
  EXPECT_EQ(Match("72", "72"), 0);
}

TEST(NumberRule, TakesTheLastBoxWhereThereIsNoMark) {
  EXPECT_EQ(Match("\\boxed{71} and so \\boxed{72}", "72"), 1);
  EXPECT_EQ(Match("\\boxed{\\frac{3}{4}}", "0.75"), 1);
  EXPECT_EQ(Match("$\\boxed{ \\$1{,}234.50 }$", "1234.5"), 1);
  EXPECT_EQ(Match("\\boxed{72\\%}", "72"), 1);
  EXPECT_EQ(Match("\\boxed{72 \\text{ eggs}}", "72"), 1);
  EXPECT_EQ(Match("\\boxed{72, 73}", "72"), 0);
  EXPECT_EQ(Match("\\boxed{72", "72"), 0);
  EXPECT_EQ(Match("\\boxed{72} #### 1", "72"), 0);
}

TEST(NumberRule, ComparesAsNumbersAndExactly) {
  for (const char* same : {"72", "72.0", "+72", "072", "72.", "$72", "72%", " 72 ", "144/2", "144 / 2", "7.2e1",
                           "\\frac{144}{2}", "-\\frac{-144}{2}", "\\dfrac{144}{2}"}) {
    EXPECT_EQ(Match(std::string("#### ") + same, "72"), 1) << same;
  }
  for (const char* other : {"-72", "7.2", "72.0000000000000000001", "7,2", "72,5", "72e1", "1.2.3", "72abc", "72^2",
                            "72/0", "\\frac{72}{0}", "\\frac{72}", "", "-", ".", "1/"}) {
    EXPECT_EQ(Match(std::string("#### ") + other, "72"), 0) << other;
  }
  EXPECT_EQ(Match("#### 1,234,567", "1234567"), 1);
  EXPECT_EQ(Match("#### -.5", "-1/2"), 1);
  EXPECT_EQ(Match("#### \xE2\x88\x92"
                  "3",
                  "-3"),
            1);
  EXPECT_EQ(Match("#### 0", "-0.0"), 1);
  EXPECT_EQ(Match("#### 0.1", "1/10"), 1);
  EXPECT_EQ(Match("#### 123456789012345678901234567890", "123456789012345678901234567891"), 0);
  EXPECT_EQ(Match("#### 1e-400", "1e-400"), 1);
}

TEST(NumberRule, BoundsTheWorkThatHostileNumbersCause) {
  for (const char* part : {"#### ", "#### 2. a ", "####  72, 1", "\\boxed ", "=", "(", "x = ", "²", "９"}) {
    for (std::string text : {"#### 72", "#### ", ""}) {
      while (text.size() < 100'000) text += part;
      EXPECT_TRUE(NumberMatch(text, "72").ok()) << part;
      EXPECT_EQ(Match("#### 72", text + "\n#### 72"), 1) << part;
    }
  }
  EXPECT_EQ(Match("#### 1e999999999", "72"), 0);
  EXPECT_EQ(Match("#### " + std::string(1000000, '7'), "72"), 0);
  EXPECT_EQ(Match(std::string(100000, '{') + "\\boxed{" + std::string(100000, '{'), "72"), 0);
}

TEST(NumberRule, ReadsLabelsInTheSameForms) {
  EXPECT_EQ(Match("#### 72", "so there are\n#### 72"), 1);
  EXPECT_EQ(Match("#### 72", "\\boxed{72}"), 1);
  EXPECT_EQ(Match("#### 1200", "$1,200"), 1);
}

TEST(NumberRule, RefusesALabelThatIsNoNumber) {
  for (const char* label : {"", "seventy-two", "72 or 73"}) {
    const absl::Status status = NumberMatch("#### 72", label).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << label;
    EXPECT_THAT(std::string(status.message()), HasSubstr(label));
  }
}

}  // namespace
}  // namespace quartet
