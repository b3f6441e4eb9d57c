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
// deny, compare or join ("or maybe", "is wrong", "more than"). Unknown words are units as they are.
std::optional<Unit> ReadUnit(std::string_view words);

// Whether a word of plain text is one behind a number: a unit by an accepted name or sign of two letters or more, or a
// word for a number.
bool IsUnitWord(std::string_view word);
bool IsNumberWord(std::string_view word);
// "m", "s", ...: beside a "/" that other units are beside, or set as text.
bool IsUnitLetter(char letter);

}  // namespace quartet::math
