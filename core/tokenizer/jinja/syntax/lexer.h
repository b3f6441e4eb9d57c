// A template's text to tokens, with Jinja's rules of white space: trim_blocks and lstrip_blocks, "-" and "+".
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quartet::jinja {

enum class TokenKind { kText, kBegin, kEnd, kPrintBegin, kPrintEnd, kName, kString, kInt, kFloat, kOperator, kEof };

struct Token {
  TokenKind kind;
  std::string text;
  int line;
};

// `source` is valid UTF-8 with "\n" at the end of lines. The last token is kEof. INVALID_ARGUMENT names the line.
absl::StatusOr<std::vector<Token>> Tokenize(std::string source);

}  // namespace quartet::jinja
