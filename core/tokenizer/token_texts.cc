#include "core/tokenizer/token_texts.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace quartet {
namespace {

constexpr std::string_view kUnreadable = "\xEF\xBF\xBD";  // what an incomplete character reads as
constexpr std::ptrdiff_t kMostLookedAt = 8;               // tokens before one, that a decoder looks back at
// Tokens in a row of which each ends within a character, as those do that have the end of one and the begin of the
// next.
constexpr int kMostIncomplete = 16;

}  // namespace

std::vector<std::string> TokenTexts(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, int64_t first) {
  std::vector<std::string> texts;
  // ids[begin..shown) read as `known`, of which all was given out, but for what stands before `first`.
  std::ptrdiff_t begin = 0, shown = first;
  std::string known;
  const auto read = [&](std::ptrdiff_t end) {
    return tokenizer.DecodeUncleaned({ids.begin() + begin, ids.begin() + end}, /*skip_special_tokens=*/false);
  };
  const auto begin_anew = [&] {
    begin = std::max<std::ptrdiff_t>(0, shown - kMostLookedAt);
    known = read(shown);
    // Not within a character: it would be read as another one, or spoil those behind it.
    while (begin < shown && known.starts_with(kUnreadable)) {
      ++begin;
      known = read(shown);
    }
  };
  begin_anew();
  for (std::ptrdiff_t i = first; i < std::ssize(ids); ++i) {
    const std::string text = read(i + 1);
    const bool last = i + 1 == std::ssize(ids);
    if (text.ends_with(kUnreadable) && !last && i + 1 - shown < kMostIncomplete) {
      texts.emplace_back();
      continue;
    }
    if (text.starts_with(known)) {
      texts.push_back(text.substr(known.size()));
    } else {
      // The decoder reads what was given out differently now, since bytes follow it.
      begin = shown;
      texts.push_back(read(i + 1));
    }
    shown = i + 1;
    begin_anew();
  }
  return texts;
}

}  // namespace quartet
