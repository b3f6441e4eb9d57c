#include "tools/step_benchmark/prompt_texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/clients/testing/byte_tokenizer.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A word is one token, one that begins with t two.
class WordTokenizer final : public ByteTokenizer {
 public:
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool) const override {
    std::vector<int32_t> ids(1);
    for (size_t i = 0; i + 1 < text.size(); ++i) {
      if (text[i] == ' ') ids.resize(ids.size() + (text[i + 1] == 't' ? 2 : 1));
    }
    return ids;
  }
};

// One token a digit; nothing else is any.
class DigitTokenizer final : public ByteTokenizer {
 public:
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool) const override {
    std::vector<int32_t> ids;
    for (const char c : text) {
      if (c >= '0' && c <= '9') ids.push_back(c);
    }
    return ids;
  }
};

TEST(PromptTexts, HaveExactlySoManyTokensAndBeginDifferently) {
  const WordTokenizer tokenizer;
  const auto texts = PromptTexts(tokenizer, 40, 30);
  ASSERT_TRUE(texts.ok()) << texts.status();
  ASSERT_EQ(texts->size(), 40);
  for (size_t i = 0; i < texts->size(); ++i) {
    EXPECT_EQ(tokenizer.Encode((*texts)[i], true)->size(), 30) << (*texts)[i];
    EXPECT_THAT((*texts)[i], StartsWith(std::to_string(i) + " "));
  }
}

TEST(PromptTexts, OfALengthThatTheTokenizerCannotMakeAreAnError) {
  const auto error = [](const Tokenizer& tokenizer, int count, int tokens) {
    return std::string(PromptTexts(tokenizer, count, tokens).status().message());
  };
  EXPECT_THAT(error(DigitTokenizer(), 1, 128), AllOf(HasSubstr("it is 128, but no text of exactly so many tokens"),
                                                     HasSubstr("\"0\" has 1, and each word")));
  EXPECT_THAT(error(ByteTokenizer(), 1, 2),
              HasSubstr("\"0\" has 1, and each word that could follow adds none, or too"));
  EXPECT_THAT(error(ByteTokenizer(), 11, 1), HasSubstr("it is 1, but"));
}

}  // namespace
}  // namespace quartet
