// Python's functions of texts. Texts are valid UTF-8; what Python counts in characters is counted in characters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quartet::jinja {

std::vector<std::string> Characters(std::string_view text);
bool IsSpace(char32_t c);  // for str.isspace and the like
bool IsAscii(std::string_view text);

// Without the characters `which` (all white space if there is none) at the sides asked for.
std::string Strip(const std::string& text, const std::optional<std::string>& which, bool left, bool right);
// The first `most` places; all if below 0. `from` is not empty.
std::string ReplaceText(const std::string& text, const std::string& from, const std::string& to, int64_t most = -1);
// At `separator`, or at white space; at most `most` times if not below 0, from the right if `from_right`.
std::vector<std::string> Split(const std::string& text, const std::optional<std::string>& separator, int64_t most,
                               bool from_right);
std::vector<std::string> SplitLines(const std::string& text, bool keep_ends);
std::string EscapeHtml(const std::string& text);

// Of ASCII texts.
std::string Uppercase(std::string text);
std::string Capitalize(const std::string& text);
std::string Title(const std::string& text);         // str.title
std::string TitleOfWords(const std::string& text);  // Jinja's filter

}  // namespace quartet::jinja
