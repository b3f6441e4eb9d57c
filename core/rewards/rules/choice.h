// The rule "choice". LibTorch-free, thread safe.
#pragma once

#include <optional>
#include <string_view>

namespace quartet {

// The one of `choices` (capitals and digits) that the text gives as its choice: in the last \boxed{} that has one, else
// in the last sentence that says so ("the answer is (B)", "B is right", "so B"), else the last that stands as a choice.
// Questions choose nothing, nor do letters that are denied, end a name ("vitamin C", "D = 5") or head one of several
// options ("A) yes B) no"). A letter in a box, in brackets or alone may be small. Nothing where there is none, or
// several are joined ("B or C") or only may be ("perhaps B, perhaps C"). In time linear in the text.
std::optional<char> ChosenLetter(std::string_view text, std::string_view choices);

}  // namespace quartet
