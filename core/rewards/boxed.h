// Answers in boxes, as TeX sets them; white space may stand before the brace of one. Functions of texts, in time linear
// in them. Thread safe.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace quartet {

// The contents of \boxed{...} and \fbox{...}, up to the braces that close them, from left to right; without those that
// are never closed. Boxes in boxes are part of the outer one.
std::vector<std::string_view> BoxedContents(std::string_view text);
// The content of the last \boxed{...} or \fbox{...}; nothing where that is never closed. Space may stand before the
// braces.
std::optional<std::string_view> LastBoxed(std::string_view text);

}  // namespace quartet
