// Mathematics in plain words, which no dollar signs mark.
#pragma once

#include <string_view>
#include <vector>

namespace quartet::math {

// The stretches of `text`, which has plain signs (signs.h), that are mathematics, as far as each reaches: "x = 2y + 3",
// "12 cm^{2}", "2 2/3", "(3, 4)", "\frac{3}{4}", "3 million", "log(100)". Without
// numbers of lists and headings ("2. So"), and ordinals. `behind_mark`: the text follows "answer is" or the like, where
// a letter is one, too, and commas, "and" and "or" join them. Linear in the text.
std::vector<std::string_view> Stretches(std::string_view text, bool behind_mark);

// Whether the words right before `at` deny what is there ("is not 5"), or say that it numbers something ("step 3").
bool IsDeniedAt(std::string_view text, size_t at);
bool IsReferenceAt(std::string_view text, size_t at);

}  // namespace quartet::math
