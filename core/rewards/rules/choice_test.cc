#include "core/rewards/rules/choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace quartet {
namespace {

using ::testing::Optional;

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

TEST(Choices, AreWhatTheLastPlainStatementSays) {
  for (const char* text : {"The answer is B. Wait, actually D.", "B? No, D.", "Is the answer B? No. It is D.",
                           "It might be B, but the answer is D.", "The answer is B, no, D."}) {
    EXPECT_THAT(ChosenLetter(text, "ABCD"), Optional('D')) << text;
  }
  for (const char* text : {"Is the answer B? No.", "Answer: B. But also D", "It might be B, might be D", "B. No."}) {
    EXPECT_EQ(ChosenLetter(text, "ABCD"), std::nullopt) << text;
  }
}

TEST(Choices, AreNoPartsOfNamesAndQuantities) {
  for (const char* text : {"The answer is vitamin C.", "The answer is 37°C.", "The answer is D=5.", "Answer: f(B)"}) {
    EXPECT_EQ(ChosenLetter(text, "ABCD"), std::nullopt) << text;
  }
}

TEST(Choices, BoundTheWorkThatHostileAnswersCause) {
  for (const char* part : {"the answer is x, ", "the answer: ", "answer: \n\n", "not A ", "A, ", "\\boxed{x, y",
                           "\\boxed{x} ", " ", "\n", "答案是", "answer B is wrong "}) {
    std::string text = "The answer";
    while (text.size() < 500'000) text += part;
    EXPECT_EQ(ChosenLetter(text, "BCD"), std::nullopt) << part;
  }
}

}  // namespace
}  // namespace quartet
