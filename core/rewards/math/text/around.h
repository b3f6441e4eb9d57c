// What stands around a value in its sentence, and whether the value is what the sentence says. Functions of texts with
// plain signs (signs.h); thread safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quartet::math {

// Whether what `before` ends with says that a value follows: "the answer is", "x =", "she pays", "so", or nothing of
// its clause; no "at least", "twice", "half of", "is not".
bool LeadsIn(std::string_view before);

// Where `behind` goes on with a unit or a noun (value_words.h) or neither, and then ends, or a clause begins that takes
// nothing back: "", or the factor that stands first (" million"). Nothing where it goes on otherwise. `value`: what
// stands before it, maybe with a unit.
std::optional<std::string> FactorBehind(std::string_view behind, std::string_view value);

// Whether the clause that `before` ends with denies or doubts what it says: "I doubt that the".
bool IsDenied(std::string_view before);

// The factor that stands behind a box ("million" behind "\boxed{5}"), or ""; nothing where what stands around it makes
// another value of it: "-\boxed{5}", "2\boxed{5}", "\boxed{5}\pi", "at least \boxed{5}". Of boxes that are joined, the
// contents of the first and the last, parts of `text`.
std::optional<std::string> FactorAround(std::string_view text, std::string_view first_box, std::string_view last_box);

}  // namespace quartet::math
