// What words behind a number say: how many of what.
#pragma once

#include <gmpxx.h>

#include <optional>
#include <string>
#include <string_view>

namespace quartet::math {

struct Unit {
  mpq_class factor = 1;  // "thousand", "dozen"
  // Of "meters per second squared", "\mathrm{m}/\mathrm{s}^2" and "m s^{-2}" the same: "m s^-2". Empty where they say
  // nothing, as "units" does. kPercent and kDegree have a meaning of their own.
  std::string name;
};
inline constexpr std::string_view kPercent = "%";
inline constexpr std::string_view kDegree = "degree";

// Of words in one or several spellings, with powers, quotients and "per", "square" and their like; nothing where they
// change the number (value_words.h). Of unknown words plurals are units as they are; others may be factors ("lakh").
std::optional<Unit> ReadUnit(std::string_view words);
// Of names that ReadUnit gave, whether they are one unit, and whether a number says the same with it as without.
bool SameUnit(std::string_view a, std::string_view b);
bool SaysNothingMore(std::string_view unit);

// Whether a word of plain text is one behind a number: a unit by an accepted name or sign of two letters or more, or a
// factor.
bool IsUnitWord(std::string_view word);
// "m", "s", ...: beside a "/" that other units are beside, or set as text.
bool IsUnitLetter(char letter);

}  // namespace quartet::math
