// The rule "choice". LibTorch-free, thread safe.
#pragma once

#include <optional>
#include <string_view>

namespace quartet {

// The one of `choices` (capitals and digits) that the text gives as its choice: in the last \boxed{} that has one, else
// in the sentence of its last "answer" that does not deny it (as in "the answer is (B)" or "Answer: B"), else the last
// that is said to be right or has a line for itself, else the last that stands alone, not as the name of something else
// ("vitamin C", "D = 5"), nor as the head of one of several options
// ("A) yes B) no"). A letter in a box, in brackets or alone may be small. Nothing where there is none, or several are
// joined ("B or C"). In time linear in the text.
std::optional<char> ChosenLetter(std::string_view text, std::string_view choices);

}  // namespace quartet
