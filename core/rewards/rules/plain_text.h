// The beginnings of texts with plain signs (core/rewards/math/grammar/signs.h). Thread safe.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

namespace quartet {

inline bool IsDigit(char c) { return c >= '0' && c <= '9'; }
inline bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The character at `at` and its bytes; U+FFFD of one byte where the text is cut within it.
std::pair<char32_t, size_t> CharOf(std::string_view text, size_t at);

// Chinese characters, kana and hangul: words in them stand beside other things without a space.
bool IsIdeograph(char32_t c);

// Take `prefix`, or any of `prefixes`, off the beginning of `*text`; false: it is not there.
bool Consume(std::string_view* text, std::string_view prefix);
bool ConsumeAny(std::string_view* text, std::span<const std::string_view> prefixes);
// White space, TeX's too; true where there was any.
bool SkipSpaces(std::string_view* text);
// A command that only styles, with its brace: "\text{", "\mathbf {", "\textcolor{red}{".
bool ConsumeStyle(std::string_view* text);

}  // namespace quartet
