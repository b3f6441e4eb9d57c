#include "rollout/stop_strings.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "rollout/piece_tokenizer.h"

namespace quartet {
namespace {

// At which token (from 0) the text ends and by what; -1: not at all.
std::pair<int, std::string> EndOf(const Tokenizer& tokenizer, const std::vector<std::string>& stop,
                                  const std::vector<int32_t>& ids) {
  const auto watcher = WatchWith(tokenizer)(stop);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (const std::string* found = watcher->Read(ids[i])) return {static_cast<int>(i), *found};
  }
  return {-1, ""};
}

using End = std::pair<int, std::string>;

TEST(StopStrings, EndWithTheTokenThatCompletesThem) {
  const PieceTokenizer tokenizer({"<end>", " the", " end", " of", " it", "END", " t", "h", "e "});
  EXPECT_EQ(EndOf(tokenizer, {"end of"}, {1, 2, 3, 4}), End(2, "end of"));
  EXPECT_EQ(EndOf(tokenizer, {"e end"}, {1, 2, 3}), End(1, "e end"));
  EXPECT_EQ(EndOf(tokenizer, {"the"}, {6, 7, 8}), End(2, "the"));
  EXPECT_EQ(EndOf(tokenizer, {"x", "en"}, {1, 2}), End(1, "en"));
  EXPECT_EQ(EndOf(tokenizer, {"of it", " it", "t"}, {4, 3, 4}), End(0, "t"));
  EXPECT_EQ(EndOf(tokenizer, {"ofit"}, {3, 4}), End(-1, ""));
  // Of several in one token the one that begins first.
  EXPECT_EQ(EndOf(tokenizer, {"D", "N", "ND"}, {1, 5}), End(1, "N"));
}

TEST(StopStrings, SpecialTokensHaveNoText) {
  const PieceTokenizer tokenizer({"<end>", "a", "b"});
  EXPECT_EQ(EndOf(tokenizer, {"<end>"}, {1, 0, 2}), End(-1, ""));
  EXPECT_EQ(EndOf(tokenizer, {"ab"}, {1, 0, 2}), End(2, "ab"));
}

TEST(StopStrings, CharactersOfSeveralTokensAreReadWhole) {
  // U+1F600 in four bytes.
  const PieceTokenizer tokenizer({"<end>", "\xF0", "\x9F", "\x98", "\x80", " a", "b"});
  EXPECT_EQ(EndOf(tokenizer, {"\xF0\x9F\x98\x80"}, {5, 1, 2, 3, 4}), End(4, "\xF0\x9F\x98\x80"));
  EXPECT_EQ(EndOf(tokenizer, {"a\xF0\x9F\x98\x80 a"}, {5, 1, 2, 3, 4, 5, 6}), End(5, "a\xF0\x9F\x98\x80 a"));
  EXPECT_EQ(EndOf(tokenizer, {"\xEF\xBF\xBD"}, {1, 2, 5}), End(-1, ""));
}

TEST(StopStrings, AreFoundInLongTextsWhereverTheyLie) {
  const PieceTokenizer tokenizer({"<end>", " x", "y", " needle", "nee", "dle"});
  for (int before : {0, 1, 50, 500}) {
    std::vector<int32_t> ids;
    for (int i = 0; i < before; ++i) ids.push_back(1 + i % 2);
    ids.insert(ids.end(), {4, 5, 1});
    EXPECT_EQ(EndOf(tokenizer, {"needle"}, ids), End(before + 1, "needle"));
  }
}

}  // namespace
}  // namespace quartet
