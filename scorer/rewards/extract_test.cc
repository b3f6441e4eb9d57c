#include "scorer/rewards/extract.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

TEST(Tags, AreTheLastOnes) {
  EXPECT_THAT(LastTag("<answer>1</answer> no: <answer> 2 </answer>", "answer"), Optional(std::string_view(" 2 ")));
  EXPECT_EQ(LastTag("<answer>1</answer><answer>2", "answer"), std::nullopt);
  EXPECT_EQ(LastTag("1", "answer"), std::nullopt);
}

TEST(CodeBlocks, OfTheLanguageComeBeforeOthers) {
  const auto blocks = [](const char* text) { return CodeBlocks(text, {"python"}); };
  EXPECT_THAT(blocks("```python\na\n```\n```\nb\n```\n"), ElementsAre("a\n"));
  EXPECT_THAT(blocks("```python\na\n```\n```Python \nb\n\nc\n```\n"), ElementsAre("a\n", "b\n\nc\n"));
  EXPECT_THAT(blocks("```\na\n```\nso:\n```\nb\n```"), ElementsAre("a\n", "b\n"));
  EXPECT_THAT(blocks("```python\na\nb"), ElementsAre("a\nb\n"));
  EXPECT_THAT(blocks("```python title=\"a.py\"\na\n```"), ElementsAre("a\n"));
  EXPECT_THAT(blocks("````python\na\n```\nb\n````\n"), ElementsAre("a\n```\nb\n"));
  EXPECT_THAT(blocks("print(1)"), IsEmpty());
}

TEST(JsonObjects, AreTheLastWholeOnes) {
  EXPECT_EQ(LastJsonObject(R"(first {"a": 1}, then {"a": {"b": [7, {"c": "}"}]}}. {done})")->dump(),
            R"({"a":{"b":[7,{"c":"}"}]}})");
  EXPECT_EQ(LastJsonObject("{ no } [1]"), std::nullopt);
  EXPECT_EQ(LastJsonObject(std::string(100000, '{')), std::nullopt);
  const nlohmann::json object = {{"a", {{"b", {7, {{"c", "x"}}}}}}};
  EXPECT_EQ(*AtPath(object, "a.b.0"), 7);
  EXPECT_EQ(*AtPath(object, "a.b.1.c"), "x");
  EXPECT_EQ(AtPath(object, "a.b.2"), nullptr);
  EXPECT_EQ(AtPath(object, "a.c"), nullptr);
}

TEST(Choices, AreFoundWhereAnswersPutThem) {
  for (const char* text : {"\\boxed{B}",
                           "So \\boxed{\\text{(b)}}",
                           "The answer is B.",
                           "the answer is (B)",
                           "Answer: B",
                           "**Answer:** B",
                           "B",
                           "b",
                           "(B)",
                           "A is too small and C too large, so it is B.",
                           "The correct answer is option B, Paris",
                           "\\boxed{B. Paris}",
                           "The answer is clearly B. A is wrong.",
                           "The answer is a bit hidden, but it is B",
                           "The answer is not A but B.",
                           "The answer choices are A) 3 and B) 4. I take B",
                           "The answer must be B, not A.",
                           "The answer isn't A, it is B.",
                           "the answer is (b).",
                           "answer: b",
                           "A total of 66 were sold.\nthe answer is (b).",
                           "The answer should be B. A is wrong.",
                           "B is the right answer. A is wrong.",
                           "(B) is the answer, and not A.",
                           "B is correct. A is wrong, and C is not possible.",
                           "It is B, not A.",
                           "It is B. A total mess otherwise"}) {
    EXPECT_THAT(ChosenLetter(text, "ABCD"), Optional('B')) << text;
  }
  for (const char* text : {"", "none of them", "\\boxed{E}", "\\boxed{BAD}", "I don't know: E", "The answer is B or D.",
                           "The answer is B and C.", "A is wrong.", "The answer is B, C.", "\\boxed{B, C}"}) {
    EXPECT_EQ(ChosenLetter(text, "ABCD"), std::nullopt) << text;
  }
}

TEST(Choices, BoundTheWorkThatHostileAnswersCause) {
  std::string text;
  while (text.size() < 500'000) text += "the answer is x, ";
  EXPECT_EQ(ChosenLetter(text, "ABCD"), std::nullopt);
}

}  // namespace
}  // namespace quartet
