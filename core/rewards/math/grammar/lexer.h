// LaTeX, and plain text with formulas, as tokens.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quartet::math {

struct Token {
  enum class Kind {
    kNumber,   // digits with or without a decimal point, digits that repeat ("0.1(6)") and an exponent ("1.6e-19");
               // separators of thousands taken out
    kLetter,   // one
    kLetters,  // several that are all there is, in words.h
    kCommand,  // "frac" of \frac; signs are commands of the same meaning
    kText,     // the content of \text{...} and the like
    kSign,     // one character, or "<=", ">=", "!="
    kEnd,
  };
  Kind kind;
  std::string text;
  bool space_before = false;  // white space or a command for space
  bool gap_before = false;    // \quad, which stands between two things
};

// What "e" is between an integer and another: in "2e-1", 0.2 or 2e - 1. Behind a decimal point it is an exponent's
// always, as E is.
enum class LetterE { kExponent, kEuler };

// Without what has no meaning: $, \left, \right, \displaystyle, styles. The last token is kEnd. Nothing where the text
// is longer than 8 KiB or has unbalanced \text{.
std::optional<std::vector<Token>> Tokenize(std::string_view latex, LetterE e = LetterE::kExponent);

}  // namespace quartet::math
