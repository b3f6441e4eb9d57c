#include "core/rewards/math/grammar/token_cursor.h"

#include <algorithm>

namespace quartet::math {
namespace {

constexpr int kMostDepth = 80;
constexpr int kMostLinks = 1000;

}  // namespace

TokenCursor::Deeper::Deeper(TokenCursor* cursor) : cursor_(*cursor) {
  if (++cursor_.depth_ > kMostDepth) cursor_.Fail();
}

void TokenCursor::CountLink() {
  if (++links_ > kMostLinks) Fail();
}

const Token& TokenCursor::Peek(size_t ahead) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }

bool TokenCursor::Sign(std::string_view sign, size_t ahead) const {
  return Peek(ahead).kind == Token::Kind::kSign && Peek(ahead).text == sign;
}

bool TokenCursor::Command(std::string_view name, size_t ahead) const {
  return Peek(ahead).kind == Token::Kind::kCommand && Peek(ahead).text == name;
}

bool TokenCursor::IsSeparator() const {
  return Sign(",") || Sign(";") || Command("and") || Command("or") || Command("land") || Command("lor");
}

bool TokenCursor::TakeSign(std::string_view sign) {
  if (!Sign(sign)) return false;
  Skip();
  return true;
}

bool TokenCursor::TakeCommand(std::string_view name) {
  if (!Command(name)) return false;
  Skip();
  return true;
}

bool TokenCursor::Expect(bool there) {
  if (there) {
    Skip();
  } else {
    Fail();
  }
  return there;
}

std::string TokenCursor::TakeText() {
  std::string text = Peek().text;
  Skip();
  return text;
}

std::string TokenCursor::TextSince(size_t begin) const {
  std::string text;
  for (size_t i = begin; i < std::min(at_, tokens_.size()); ++i) {
    if (tokens_[i].text != "{" && tokens_[i].text != "}") text += tokens_[i].text;
  }
  return text;
}

size_t TokenCursor::BracketedAhead() const {
  int depth = 0;
  size_t ahead = 0;
  do {
    if (Sign("(", ahead) || Sign("[", ahead) || Sign("{", ahead) || Command("{", ahead)) ++depth;
    if (Sign(")", ahead) || Sign("]", ahead) || Sign("}", ahead) || Command("}", ahead)) --depth;
    ++ahead;
  } while (depth > 0 && Peek(ahead).kind != Token::Kind::kEnd);
  return ahead;
}

std::string TokenCursor::TakeDigit() {
  std::string& number = tokens_[std::min(at_, tokens_.size() - 1)].text;
  std::string digit = number.substr(0, 1);
  number.erase(0, 1);
  return digit;
}

std::string TokenCursor::TakeSubscript() {
  if (!TakeSign("_")) return "";
  std::string name = "_";
  if (!Sign("{")) {
    if (AtEnd()) Fail();
    return name + TakeText();
  }
  int depth = 0;
  do {
    if (Sign("{")) ++depth;
    if (Sign("}")) --depth;
    if (AtEnd()) {
      Fail();
      return name;
    }
    if (!Sign("{") && !Sign("}")) name += Peek().text;
    Skip();
  } while (depth > 0);
  return name;
}

void TokenCursor::SkipGroup() {
  if (!Expect(Sign("{"))) return;
  while (!failed_ && !Sign("}")) {
    if (AtEnd()) Fail();
    Skip();
  }
  Skip();
}

}  // namespace quartet::math
