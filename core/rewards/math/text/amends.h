// What beside its own sentence makes another answer of a value, or none: what takes it back, what it is only one of.
// Functions of texts with plain signs (signs.h); thread safe.
#pragma once

#include <string_view>

namespace quartet::math {

// Whether the sentence or clause that `behind` begins with takes back what was said: "That is incorrect", "No,",
// "which is wrong", "it should be 71".
bool Retracts(std::string_view behind);

// Whether the clause offers a further value: "or 73", "possibly".
bool Offers(std::string_view behind);

// Whether a Chinese word of `text` denies a value: 不是, 错; bounds it: 至少.
bool DeniesInChinese(std::string_view text);
bool BoundsInChinese(std::string_view text);

// Whether `between` two boxes makes them guesses, of which the last is no more the answer than the first: "or maybe",
// the marks of a list.
bool IsGuess(std::string_view between);

// Whether the word "answer" behind `before` is not what was asked for: "twice the", "the other", "the square of the".
bool IsOfAnother(std::string_view before);

}  // namespace quartet::math
