// What each token of a text reads as in its place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tokenizer/tokenizer.h"

namespace quartet {

// The text of each of ids[first], ids[first + 1], ...: what the decoded text grows by with it, special tokens included,
// of whole characters. A character of several tokens is the last one's, and the others are "". Put together they are
// what ids say behind the first `first` ones, without any cleaning of spaces. Bytes that are no character read as
// U+FFFD, once or several times, which is the text of the token that has the last of them. The work for a token does
// not grow with the text, but where a decoder reads long runs of such bytes otherwise than their parts.
std::vector<std::string> TokenTexts(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, int64_t first);

}  // namespace quartet
