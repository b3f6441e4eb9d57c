// LaTeX, and plain text with formulas, as tokens.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quartet::math {

struct Token {
  enum class Kind {
    kNumber,   // digits with or without a decimal point and an exponent ("1.6e-19"), separators of thousands taken out
    kLetter,   // one
    kCommand,  // "frac" of \frac; text in other alphabets and signs are commands of the same meaning
    kText,     // the content of \text{...} and the like
    kSign,     // one character, or "<=", ">=", "!="
    kEnd,
  };
  Kind kind;
  std::string text;
  bool space_before = false;  // white space or a command for space
};

// What "e" is between an integer and another: in "2e-1", 0.2 or 2e - 1. Behind a decimal point it is an exponent's
// always, as E is.
enum class LetterE { kExponent, kEuler };

// Without what has no meaning: $, \left, \right, \displaystyle, styles, degrees, percent and currency signs. The last
// token is kEnd. Nothing where the text is longer than 8 KiB or has unbalanced \text{.
std::optional<std::vector<Token>> Tokenize(std::string_view latex, LetterE e = LetterE::kExponent);

// `text` with raised digits and signs of Unicode as powers: "10^{-19}".
std::string WithPlainPowers(std::string_view text);

}  // namespace quartet::math
