// A walk over the tokens of a formula, with bounds on how much a text may ask for.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/rewards/math/grammar/lexer.h"

namespace quartet::math {

// Nothing is thrown: that the text is no formula, or too much of one, is remembered, and its reader returns as soon as
// it can. Reading on does no harm: beyond the last token is that token, kEnd, again.
class TokenCursor {
 public:
  // `tokens` end with kEnd.
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // A level of what is read, for as long as it lives. Levels beyond the most that there may be are a failure.
  class Deeper {
   public:
    explicit Deeper(TokenCursor* cursor);
    ~Deeper() { --cursor_.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    TokenCursor& cursor_;
  };
  // Powers, factorials and quotients one after the other make a tree deeper, too.
  void CountLink();

  void Fail() { failed_ = true; }
  bool failed() const { return failed_; }

  // What is `ahead` of the next token; 0: the next one.
  const Token& Peek(size_t ahead = 0) const;
  bool AtEnd() const { return Peek().kind == Token::Kind::kEnd; }
  bool Sign(std::string_view sign, size_t ahead = 0) const;
  bool Command(std::string_view name, size_t ahead = 0) const;
  // Between elements of a list.
  bool IsSeparator() const;

  void Skip(size_t tokens = 1) { at_ += tokens; }
  // Whether the next token is this; it is behind the cursor then.
  bool TakeSign(std::string_view sign);
  bool TakeCommand(std::string_view name);
  // Fails where the next token is not what must be `there`.
  bool Expect(bool there);
  std::string TakeText();
  // Where the cursor is, and what stands from there up to where it is later, without braces.
  size_t at() const { return at_; }
  void Return(size_t to) { at_ = to; }
  std::string TextSince(size_t begin) const;
  bool StoodAt(std::string_view sign, size_t at) const {
    return tokens_[at].kind == Token::Kind::kSign && tokens_[at].text == sign;
  }
  // What is ahead, at the next token, a bracket, and up to the one that closes it: (x) is three. As many as there are
  // where none does.
  size_t BracketedAhead() const;
  // The first digit of the next token, a number, without the others.
  std::string TakeDigit();
  // The index below a letter, as part of its name; empty: there is none.
  std::string TakeSubscript();
  // {...}, whatever is in it; no braces inside.
  void SkipGroup();

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int links_ = 0;
  bool failed_ = false;
};

}  // namespace quartet::math
