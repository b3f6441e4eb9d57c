// Which part of a text is its answer.
#pragma once

#include <string>
#include <string_view>

namespace quartet::math {

// What a text gives as its answer: the content of its last \boxed{} (of several that "," or "and" joins, all of them),
// else its last formula ($...$, \(...\), \[...\]; several likewise), else its last number; "" where there is none.
// Linear in the text.
std::string AnswerIn(std::string_view text);
// A label says nothing but the answer: where it has neither box nor formula, it is one whole.
std::string AnswerOfLabel(std::string_view label);

}  // namespace quartet::math
