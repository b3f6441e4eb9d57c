#include "core/tokenizer/space_cleaner.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace quartet {
namespace {

template <size_t count>
bool Holds(const std::string_view (&list)[count], std::string_view text) {
  return std::find(std::begin(list), std::end(list), text) != std::end(list);
}

// From where on `text` may read differently with what follows: a space, what has begun of a contraction, and spaces
// between its characters, which may go before it is looked for.
size_t FirstHeld(std::string_view text) {
  static constexpr std::string_view kBegun[] = {"", "'", "n", "n'", "'v", "'r"};
  static constexpr std::string_view kEnds[] = {"'", "n", "v", "r", "n'", "'v", "'r"};  // of those
  size_t held = text.size();
  std::string characters;
  for (size_t at = text.size(); at > 0; --at) {
    if (text[at - 1] != ' ') {
      characters.insert(characters.begin(), text[at - 1]);
      if (!Holds(kEnds, characters)) break;
    } else if (Holds(kBegun, characters)) {
      held = at - 1;
    }
  }
  // A quotation mark before it takes its space, or not, by what stands before the mark.
  while (held < text.size() && held > 0 && text[held - 1] == '\'') {
    --held;
    while (held > 0 && text[held - 1] == ' ') --held;
  }
  return held;
}

}  // namespace

std::string CleanUpSpaces(std::string text) {
  static constexpr std::pair<absl::string_view, absl::string_view> kSteps[] = {
      {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
      {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& step : kSteps) absl::StrReplaceAll({step}, &text);
  return text;
}

std::string SpaceCleaner::Read(std::string_view piece) {
  held_ += piece;
  const size_t first = FirstHeld(held_);
  std::string text = CleanUpSpaces(held_.substr(0, first));
  held_.erase(0, first);
  return text;
}

std::string SpaceCleaner::Finish() { return CleanUpSpaces(std::exchange(held_, "")); }

}  // namespace quartet
