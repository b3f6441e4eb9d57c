#include "core/tokenizer/added_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quartet {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Split(const TokenFinder& finder, const std::string& text) {
  std::vector<std::string> parts;
  for (const TextPart& part : finder.Split(text)) {
    parts.push_back((part.id ? std::to_string(*part.id) + ":" : "") + std::string(part.text));
  }
  return parts;
}

TEST(TokenFinder, TakesTheLeftmostAndOfThoseTheLongest) {
  TokenFinder finder;
  finder.Add("<a>", {.id = 1});
  finder.Add("<a>b", {.id = 2});
  finder.Add("a>", {.id = 3});
  EXPECT_THAT(Split(finder, "x<a>bc<a>a><a"), ElementsAre("x", "2:<a>b", "c", "1:<a>", "3:a>", "<a"));
  EXPECT_THAT(Split(finder, ""), ElementsAre());
}

TEST(TokenFinder, StripsWhiteSpaceWhereTheTokenSaysSo) {
  TokenFinder finder;
  finder.Add("<l>", {.id = 1, .lstrip = true});
  finder.Add("<r>", {.id = 2, .rstrip = true});
  EXPECT_THAT(Split(finder, "a \u3000<l> b <r>\n c<r> <l>"),
              ElementsAre("a", "1: \u3000<l>", " b ", "2:<r>\n ", "c", "2:<r> ", "1:<l>"));
}

TEST(TokenFinder, LeavesAloneWhatIsInsideAWord) {
  TokenFinder finder;
  finder.Add("yes", {.id = 1, .single_word = true});
  EXPECT_THAT(Split(finder, "yes eyes yesé _yes yes."), ElementsAre("1:yes", " eyes yesé _yes ", "1:yes", "."));
}

}  // namespace
}  // namespace quartet
