#include "rollout/http/answer_text.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "rollout/piece_tokenizer.h"

namespace quartet {
namespace {

using Strings = std::vector<std::string>;

// What is told token by token, and at the end.
Strings Told(const PieceTokenizer& tokenizer, const std::vector<int32_t>& ids, const Strings& stop = {},
             const std::string& ended_by = "", const std::set<int32_t>& silent = {},
             const std::vector<int32_t>& prompt = {}) {
  AnswerText text(tokenizer, prompt, stop, silent);
  Strings told;
  for (const int32_t id : ids) told.push_back(text.Read(id));
  told.push_back(text.Finish(ended_by));
  return told;
}

const PieceTokenizer& Words() {
  static const auto* tokenizer = new PieceTokenizer({"<end>", " the", " cat", " sat", "sa", "t!", "\n", "User", ":"});
  return *tokenizer;
}

TEST(AnswerText, IsToldAtOnceWhereNothingCanStopIt) {
  EXPECT_EQ(Told(Words(), {4, 5, 2}), (Strings{"sa", "t!", " cat", ""}));
}

TEST(AnswerText, GoesOnFromThePromptWithItsSpace) {
  EXPECT_EQ(Told(Words(), {2}), (Strings{"cat", ""}));
  EXPECT_EQ(Told(Words(), {2}, {}, "", {}, {1}), (Strings{" cat", ""}));
}

TEST(AnswerText, HasTheSpaceOfAWordBehindSpecialTokens) {
  EXPECT_EQ(Told(Words(), {1, 0, 0, 2, 0, 3}), (Strings{"the", "", "", " cat", "", " sat", ""}));
  EXPECT_EQ(Told(Words(), {2}, {}, "", {}, {1, 0, 0, 0, 0, 0, 0}), (Strings{" cat", ""}));
  EXPECT_EQ(Told(Words(), {0, 2}), (Strings{"", "cat", ""}));
}

TEST(AnswerText, CountsTheCharactersItHasRead) {
  AnswerText text(Words(), {}, {"t!"}, {8});
  std::vector<int64_t> characters;
  for (const int32_t id : {2, 0, 3, 4, 8}) {
    text.Read(id);
    characters.push_back(text.characters());
  }
  EXPECT_EQ(characters, (std::vector<int64_t>{3, 3, 7, 9, 9}));
}

TEST(AnswerText, HasNoneOfAStopStringThatEndedIt) {
  EXPECT_EQ(Told(Words(), {2, 6, 7, 8}, {"\nUser:"}, "\nUser:"), (Strings{"cat", "", "", "", ""}));
  // Also where its last token has more behind it, or before it.
  EXPECT_EQ(Told(Words(), {4, 5}, {"at"}, "at"), (Strings{"s", "", ""}));
}

TEST(AnswerText, TellsWhatWasNoStopStringAfterAll) {
  EXPECT_EQ(Told(Words(), {2, 6, 7, 3}, {"\nUser:"}), (Strings{"cat", "", "", "\nUser sat", ""}));
  EXPECT_EQ(Told(Words(), {2, 6, 7}, {"\nUser:"}), (Strings{"cat", "", "", "\nUser"}));
}

TEST(AnswerText, TellsAStopStringThatCameTooEarlyToEndIt) {
  EXPECT_EQ(Told(Words(), {2, 3, 2, 3}, {"sat"}, "sat"), (Strings{"cat", " ", "sat cat", " ", ""}));
}

TEST(AnswerText, HasNoTextOfTokensThatEndIt) {
  EXPECT_EQ(Told(Words(), {2, 8}, {}, "", {8}), (Strings{"cat", "", ""}));
  EXPECT_EQ(Told(Words(), {2, 0}), (Strings{"cat", "", ""}));
}

TEST(AnswerText, IsOfWholeCharacters) {
  // U+1F600 in four tokens, and one that has the end of a character and the beginning of the next.
  const PieceTokenizer tokenizer({"<end>", "\xF0", "\x9F", "\x98", "\x80", "a", "\x80\xF0"});
  const std::string smile = "\xF0\x9F\x98\x80";
  EXPECT_EQ(Told(tokenizer, {5, 1, 2, 3, 4, 5}), (Strings{"a", "", "", "", smile, "a", ""}));
  EXPECT_EQ(Told(tokenizer, {1, 2, 3, 6, 2, 3, 4}), (Strings{"", "", "", "", "", "", smile + smile, ""}));
  // Cut off in the middle.
  EXPECT_EQ(Told(tokenizer, {5, 1, 2}), (Strings{"a", "", "", "\xEF\xBF\xBD"}));
}

}  // namespace
}  // namespace quartet
