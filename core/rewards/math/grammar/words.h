// What names and signs stand for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/rewards/math/grammar/lexer.h"

namespace quartet::math {

// "sin", "log" and their like.
bool IsFunction(std::string_view word);
// "det", "max" and their like, of arguments in brackets or not.
bool IsOperator(std::string_view word);
// The function that undoes it, as \sin^{-1} says; empty: it has none here.
std::string_view InverseOf(std::string_view function);
// Commands that are a symbol each: Greek letters but \pi, which is a constant; \ell, \emptyset.
bool IsSymbol(std::string_view name);
// Marks over a letter or letters, or before them, that are part of a name: \vec{a}, \overline{AB}, \angle ABC.
bool IsMark(std::string_view command);
// "=", "<", ">", "<=", ">=", "!=", "in" or "notin".
std::optional<std::string> RelationOf(const Token& token);

// Words of plain text: "and" and "or" separate; functions and constants are commands; units behind numbers, and words
// that are all that an element of the answer says, are text. Letters that are all that it says are kLetters.
std::vector<Token> JoinWords(const std::vector<Token>& tokens);

// Whether letters that are all that is said may be a product in another order: no word has them.
bool MayBeReordered(std::string_view letters);

}  // namespace quartet::math
