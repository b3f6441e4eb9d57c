// Texts from outside (files, arguments, peers) as messages show them. LibTorch-free. Thread safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quartet {

// `text` without what a terminal obeys: control characters are written as \x1b, but for line ends and tabs; what is no
// UTF-8 becomes U+FFFD.
std::string Shown(std::string_view text);

// The same of a text of several lines, such as a library's own message, on one: blank ones are left out, "; " stands
// between the others.
std::string ShownOnOneLine(std::string_view text);

// The last `lines` lines of `text`, without blanks at its end.
std::string_view LastLines(std::string_view text, int lines);

inline constexpr size_t kMostQuotedBytes = 200;

// `text` between double quotes, on one line: line ends and tabs are escaped too. Where it has more than `most` bytes
// it is cut between two characters, and its size follows: "abc"... (1000 bytes).
std::string Quoted(std::string_view text, size_t most = kMostQuotedBytes);
// The same without the quotes, of what has its own, such as JSON.
std::string Cut(std::string_view text, size_t most = kMostQuotedBytes);

// `value`, of nlohmann's, as JSON on one line, whatever it holds: what is no UTF-8 becomes U+FFFD.
template <typename Json>
std::string OneLineJson(const Json& value) {
  return value.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}
// The same, cut.
template <typename Json>
std::string CutJson(const Json& value, size_t most = kMostQuotedBytes) {
  return Cut(OneLineJson(value), most);
}

}  // namespace quartet
