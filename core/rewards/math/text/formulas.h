// Formulas that a text marks: $...$, $$...$$, \(...\), \[...\].
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quartet::math {

// Contents, from left to right; $...$ and \(...\) on one line. "$5 and $6" is money. Linear in the text.
std::vector<std::string_view> Formulas(std::string_view text);

// Of `parts` of `text`, formulas or boxes: the last, with those before it that commas, "and" or "or" join it to, " , "
// or " or " between them.
// `*first`: which of them it begins with.
std::string JoinLast(std::string_view text, const std::vector<std::string_view>& parts, size_t* first = nullptr);
// The first, likewise with those behind it. `*last`: which of them it ends with.
std::string JoinFirst(std::string_view text, const std::vector<std::string_view>& parts, size_t* last = nullptr);

}  // namespace quartet::math
