// What names and signs stand for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scorer/rewards/math/lexer.h"

namespace quartet::math {

// "sin", "log" and their like.
bool IsFunction(std::string_view word);
// Commands that are a symbol each: Greek letters but \pi, which is a constant; \ell, \emptyset.
bool IsSymbol(std::string_view name);
// "=", "<", ">", "<=", ">=", "!=" or "in".
std::optional<std::string> RelationOf(const Token& token);

// Words of plain text: "and" and "or" separate; functions and constants are commands; units and other words are text.
std::vector<Token> JoinWords(const std::vector<Token>& tokens);

}  // namespace quartet::math
