// Whether bytes are UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace quartet {

// Replaces each maximal part of a broken sequence by U+FFFD, as Python's errors="replace" and the Unicode standard do.
std::string ReplaceInvalidUtf8(std::string_view bytes);
bool IsValidUtf8(std::string_view bytes);

}  // namespace quartet
