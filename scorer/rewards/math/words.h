// Letters that are words.
#pragma once

#include <string_view>
#include <vector>

#include "scorer/rewards/math/lexer.h"

namespace quartet::math {

// "sin", "log" and their like.
bool IsFunction(std::string_view word);

// Words of plain text: "and" and "or" separate; functions and constants are commands; units and other words are text.
std::vector<Token> JoinWords(const std::vector<Token>& tokens);

}  // namespace quartet::math
