// Words before a value, in lower case, by what they say of it. Thread safe.
#pragma once

#include <string_view>

namespace quartet::math {

// Words that say that a value follows at once. Verbs of other kinds ("excludes") may say anything of it.
bool SaysValue(std::string_view lower);

// With a preposition behind them: "comes to 5", "a total of 5", "picked up 5".
bool SaysValueWith(std::string_view lower, std::string_view preposition);

// What may stand between those and the value.
bool IsFillerWord(std::string_view lower);

// What may stand between a modal verb's "be" and the clause before it.
bool MayBe(std::string_view lower);

}  // namespace quartet::math
