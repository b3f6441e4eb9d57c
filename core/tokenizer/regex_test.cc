#include "core/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Find(const std::string& pattern, const std::string& text) {
  const auto regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  std::vector<std::string> found;
  for (const auto& [begin, end] : regex->FindAll(text)) found.push_back(text.substr(begin, end - begin));
  return found;
}

TEST(Regex, KnowsUnicodeClasses) {
  EXPECT_THAT(Find(R"(\p{L}+)", "añb 日本 3"), ElementsAre("añb", "日本"));
  EXPECT_THAT(Find(R"(\p{Han}+)", "a日本かな"), ElementsAre("日本"));
  EXPECT_THAT(Find(R"([^\s\p{L}]+)", "a1 \u3000!"), ElementsAre("1", "!"));
  EXPECT_THAT(Find(R"(\w+)", "e\u0301-a_b"), ElementsAre("e\u0301", "a_b"));
  EXPECT_THAT(Find(R"(\d)", "1٣½"), ElementsAre("1", "٣"));
}

TEST(Regex, CountsAsWhiteSpaceWhatUnicodeDoes) {
  EXPECT_THAT(Find(R"(\s+)", "a\u0085\u00a0b\u180ec\u200bd"), ElementsAre("\u0085\u00a0"));
  EXPECT_THAT(Find(R"(\S+)", "a b"), ElementsAre("a", "b"));
}

TEST(Regex, LooksAhead) { EXPECT_THAT(Find(R"(\s+(?!\S)|\s+)", "a   b  "), ElementsAre("  ", " ", "  ")); }

TEST(Regex, SkipsEmptyMatches) { EXPECT_THAT(Find("x*", "axxb é"), ElementsAre("xx")); }

TEST(Regex, MatchesLongTexts) {
  const std::string spaces(1'000'000, ' ');
  EXPECT_THAT(Find(R"(\s+(?!\S)|\s+)", spaces + "x"), ElementsAre(spaces.substr(1), " "));
  EXPECT_THAT(Find(R"((?:ab|cd)+)", "ab" + std::string(1'000'000, ' ')), ElementsAre("ab"));
}

TEST(Regex, FindsLiteralsAsTheyAre) {
  EXPECT_EQ(Regex::Literal("a.").FindAll("a.ab a."), (std::vector<std::pair<size_t, size_t>>{{0, 2}, {5, 7}}));
  EXPECT_TRUE(Regex::Literal("").FindAll("abc").empty());
}

TEST(Regex, RefusesByNameWhatTheSyntaxesReadDifferently) {
  for (const auto& [pattern, name] : std::vector<std::pair<std::string, std::string>>{{R"([a&&b])", "&&"},
                                                                                      {R"(\h)", "\\h"},
                                                                                      {R"((?m)a)", "(?m"},
                                                                                      {R"([a[b]])", "class"},
                                                                                      {R"([\W])", "\\W"},
                                                                                      {R"((a)", "(a"},
                                                                                      {R"(\p{Nonsense})", "Nonsense"},
                                                                                      {"a\\", "backslash"}}) {
    const auto regex = Regex::Compile(pattern);
    EXPECT_EQ(regex.status().code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_THAT(std::string(regex.status().message()), HasSubstr(name));
  }
}

}  // namespace
}  // namespace quartet
