// Whether bytes are UTF-8, and where its characters end.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quartet {

// Replaces each maximal part of a broken sequence by U+FFFD, as Python's errors="replace" and the Unicode standard do.
std::string ReplaceInvalidUtf8(std::string_view bytes);
bool IsValidUtf8(std::string_view bytes);

// Of the first `bytes` bytes of `text`, UTF-8, those of whole characters.
size_t WholeCharacters(std::string_view text, size_t bytes);

}  // namespace quartet
