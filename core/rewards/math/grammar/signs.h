// Unicode in mathematics.
#pragma once

#include <string>
#include <string_view>

namespace quartet::math {

// `text`, UTF-8, with what has a meaning in LaTeX written so: signs, Greek letters, fractions, raised and lowered
// characters ("x^{2}"), full-width and mathematical letters, digits of other scripts; dashes, quotes and spaces are
// those of ASCII. What has none stays. Once more changes nothing.
std::string WithPlainSigns(std::string_view text);

}  // namespace quartet::math
