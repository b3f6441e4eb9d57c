#include "core/errors/shown.h"

#include <gtest/gtest.h>

namespace quartet {
namespace {

TEST(Shown, EscapesWhatATerminalObeysAndKeepsLines) {
  EXPECT_EQ(Shown("a\x1b[31mb\x07\x7f\r"), "a\\x1b[31mb\\x07\\x7f\\x0d");
  EXPECT_EQ(Shown("one\n\ttwo"), "one\n\ttwo");
  EXPECT_EQ(Shown("caf\xc3\xa9 \xc2\xa0 \xe4\xb8\xad"), "caf\xc3\xa9 \xc2\xa0 \xe4\xb8\xad");
  EXPECT_EQ(Shown("\xc2\x9b[2J"), "\\x9b[2J") << "CSI in one character";
  EXPECT_EQ(Shown("\xff|\xc2"), "\xef\xbf\xbd|\xef\xbf\xbd");
}

TEST(Shown, PutsLinesOfALibrarysMessageBehindEachOther) {
  EXPECT_EQ(ShownOnOneLine("Couldn't read: Invalid data\n\n  Page header failed.\r\n"),
            "Couldn't read: Invalid data; Page header failed.");
  EXPECT_EQ(ShownOnOneLine("one\x1b"), "one\\x1b");
  EXPECT_EQ(ShownOnOneLine("\n"), "");
}

TEST(Shown, QuotesOnOneLineAndCutsBetweenCharacters) {
  EXPECT_EQ(Quoted("one\ntwo\t\x1b"), "\"one\\ntwo\\t\\x1b\"");
  EXPECT_EQ(Quoted(""), "\"\"");
  EXPECT_EQ(Quoted("abcd", 4), "\"abcd\"");
  EXPECT_EQ(Quoted("abcde", 4), "\"abcd\"... (5 bytes)");
  EXPECT_EQ(Quoted("ab\xe4\xb8\xad", 4), "\"ab\"... (5 bytes)");
  EXPECT_LT(Quoted(std::string(1'000'000, 'x')).size(), 250);
  EXPECT_EQ(Cut("[1,\n2]"), "[1,\\n2]");
  EXPECT_EQ(Cut("[\"a\", 1]", 4), "[\"a\"... (8 bytes)");
}

TEST(LastLines, AreThoseBeforeTheBlanksAtTheEnd) {
  EXPECT_EQ(LastLines("1\n2\n3\n \n", 2), "2\n3");
  EXPECT_EQ(LastLines("1\n2", 5), "1\n2");
  EXPECT_EQ(LastLines("\n2", 2), "\n2");
  EXPECT_EQ(LastLines("\n2", 1), "2");
  EXPECT_EQ(LastLines("\n", 5), "");
  EXPECT_EQ(LastLines("", 5), "");
}

}  // namespace
}  // namespace quartet
