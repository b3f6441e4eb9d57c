#include "core/tokenizer/unicode/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Find(const std::string& pattern, const std::string& text) {
  const auto regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  RegexBudget budget(text.size());
  const std::vector<Regex::Range> matches = regex->FindAll(text, &budget).value();
  std::vector<std::string> found;
  for (const auto& [begin, end] : matches) found.push_back(text.substr(begin, end - begin));
  return found;
}

TEST(Regex, KnowsUnicodeClasses) {
  EXPECT_THAT(Find(R"(\p{L}+)", "añb 日本 3"), ElementsAre("añb", "日本"));
  EXPECT_THAT(Find(R"(\p{Han}+)", "a日本かな"), ElementsAre("日本"));
  EXPECT_THAT(Find(R"([^\s\p{L}]+)", "a1 \u3000!"), ElementsAre("1", "!"));
  EXPECT_THAT(Find(R"(\w+)", "e\u0301-a_b"), ElementsAre("e\u0301", "a_b"));
  EXPECT_THAT(Find(R"(\d)", "1٣½"), ElementsAre("1", "٣"));
}

// What Oniguruma finds, at the characters that PCRE2 does not know; tools/golden/make_unicode_tables.py.
TEST(Regex, KnowsTheCharactersThatOnigurumaKnows) {
  std::ifstream file("core/tokenizer/unicode/testdata/unicode.json");
  const auto golden = nlohmann::json::parse(file)["matches"];
  ASSERT_GE(golden.size(), 200);
  for (const auto& row : golden) {
    EXPECT_EQ(Find(row[0], row[1]), row[2].get<std::vector<std::string>>())
        << row[0] << " in " << row[1].dump(-1, ' ', true);
  }
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
  EXPECT_THAT(FindLiteral("a.ab a.", "a."), ElementsAre(Regex::Range(0, 2), Regex::Range(5, 7)));
  EXPECT_TRUE(FindLiteral("abc", "").empty());
}

TEST(Regex, RefusesByNameWhatTheSyntaxesReadDifferently) {
  for (const auto& [pattern, name] :
       std::vector<std::pair<std::string, std::string>>{{R"([a&&b])", "&&"},
                                                        {R"(\h)", "\\h"},
                                                        {R"((?m)a)", "(?m"},
                                                        {R"([a[b]])", "class"},
                                                        {R"([\W])", "\\W"},
                                                        {R"([\P{Lu}])", "\\p{Lu}"},
                                                        {R"([[:punct:]])", "[:punct:]"},
                                                        {R"((a)", "(a"},
                                                        {R"(\p{Nonsense})", "Nonsense"},
                                                        {R"((a|(?1)b))", "(?1"},
                                                        {R"((a|(?-1)b))", "(?-1"},
                                                        {R"((a|(?R)b))", "(?R"},
                                                        {R"((?|a|b))", "(?|"},
                                                        {R"((*LIMIT_MATCH=0)a)", "(*"},
                                                        {R"(a(*COMMIT)b)", "(*"},
                                                        {std::string(1 << 20, 'a'), "at most 16384"},
                                                        {"a\\", "backslash"}}) {
    const auto regex = Regex::Compile(pattern);
    EXPECT_EQ(regex.status().code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_THAT(std::string(regex.status().message()), HasSubstr(name));
  }
}

std::string ErrorOf(const std::string& pattern, const std::string& text) {
  const auto regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  RegexBudget budget(text.size());
  const auto matches = regex->FindAll(text, &budget);
  EXPECT_EQ(matches.status().code(), absl::StatusCode::kInvalidArgument) << pattern;
  return std::string(matches.status().message());
}

TEST(Regex, EndsWithAnErrorWhereBacktrackingHasNoEnd) {
  EXPECT_EQ(ErrorOf("(a|a)+$", std::string(60, 'a') + "b"),
            "the pattern \"(a|a)+$\" takes more backtracking on a text of 61 bytes than is allowed");
  EXPECT_THAT(ErrorOf("(x+x+)+y", std::string(5000, 'x') + "-y"), HasSubstr("more backtracking"));
  // Little at each place, too much at all of them.
  EXPECT_THAT(ErrorOf("(?:a|a){19}b", std::string(5000, 'a') + "-b"), HasSubstr("more backtracking"));
}

TEST(Regex, EndsWithAnErrorWhereAMatchTakesTooMuchMemory) {
  EXPECT_THAT(ErrorOf("(?:.|\\n)*x", std::string(14 << 20, 'a')), HasSubstr("more memory on a text of 14680064 bytes"));
}

TEST(Regex, EndsWithAnErrorWhereNothingIsGoneBackToButTimePasses) {
  EXPECT_THAT(ErrorOf("(?:(?=a*+b)|(?=a*+c))a", std::string(1 << 20, 'a') + "-b-c"), HasSubstr("more time"));
}

TEST(Regex, FindsWhatIsBeyondAnExpensivePlace) {
  const std::string text = std::string(500, 'a') + "c" + std::string(1000, 'z') + "éab";
  EXPECT_THAT(Find("(?:a|aa){9}b|c|éab?", text), ElementsAre("c", "éab"));
  // Nothing is found before a place from which it cannot be gone on.
  EXPECT_THAT(Find("(?:ab)+", std::string(1000, '-') + "abab" + std::string(1000, '-') + "ab"),
              ElementsAre("abab", "ab"));
}

}  // namespace
}  // namespace quartet
