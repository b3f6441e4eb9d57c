// GPT-2's bytes as characters.
#pragma once

#include <string>

namespace quartet {

// A printable character for each byte of `text`.
std::string ToByteChars(const std::string& text);
// The bytes. A token that is not made of the alphabet alone stays as it is.
std::string FromByteChars(const std::string& token);

}  // namespace quartet
