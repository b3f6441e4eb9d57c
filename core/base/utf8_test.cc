#include "core/base/utf8.h"

#include <gtest/gtest.h>

namespace quartet {
namespace {

const std::string kBad = "\xef\xbf\xbd";

TEST(ReplaceInvalidUtf8, ReplacesEachMaximalBrokenPartOnce) {
  EXPECT_EQ(ReplaceInvalidUtf8("h\xc3\xa9 \xf0\x9f\x98\x80"), "h\xc3\xa9 \xf0\x9f\x98\x80");
  EXPECT_EQ(ReplaceInvalidUtf8("a\x80z"), "a" + kBad + "z");
  EXPECT_EQ(ReplaceInvalidUtf8("\xf0\x9f\x98"
                               "z"),
            kBad + "z");
  EXPECT_EQ(ReplaceInvalidUtf8("\xc0\xaf"), kBad + kBad);                        // overlong
  EXPECT_EQ(ReplaceInvalidUtf8("\xed\xa0\x80"), kBad + kBad + kBad);             // a surrogate
  EXPECT_EQ(ReplaceInvalidUtf8("\xf4\x90\x80\x80"), kBad + kBad + kBad + kBad);  // beyond U+10FFFF
  EXPECT_EQ(ReplaceInvalidUtf8("\xe2\x82"), kBad);
  EXPECT_FALSE(IsValidUtf8("a\x80"));
  EXPECT_TRUE(IsValidUtf8(std::string("\0\x7f\xc2\x80", 4)));
}

TEST(WholeCharacters, CutNone) {
  EXPECT_EQ(WholeCharacters("a\u20ac", 4), 4U);
  EXPECT_EQ(WholeCharacters("a\u20ac", 3), 1U);
  EXPECT_EQ(WholeCharacters("a\u20ac", 1), 1U);
  EXPECT_EQ(WholeCharacters("\u20ac", 2), 0U);
  EXPECT_EQ(WholeCharacters("", 0), 0U);
}

}  // namespace
}  // namespace quartet
