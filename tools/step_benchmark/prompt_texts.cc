#include "tools/step_benchmark/prompt_texts.h"

#include <cstdint>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/errors/shown.h"

namespace quartet {
namespace {

constexpr const char* kWords[] = {" the", " a",  " of",  " and", " to",  " in",   " is",  " that",
                                  " for", " it", " was", " on",  " are", " with", " his", " they"};
constexpr size_t kStride = 7;  // has no divisor in common with their number: so many of them in turn are all

absl::StatusOr<int> LengthOf(const Tokenizer& tokenizer, const std::string& text) {
  QUARTET_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer.EncodePrompt(text));
  return static_cast<int>(ids.size());
}

// The text that begins with `number`.
absl::StatusOr<std::string> PromptText(const Tokenizer& tokenizer, int number, int tokens) {
  std::string text = absl::StrCat(number);
  auto word = static_cast<size_t>(number);
  QUARTET_ASSIGN_OR_RETURN(int length, LengthOf(tokenizer, text));
  // Each further word is the first that makes the text longer, and not too long.
  for (size_t tried = 0; length < tokens && tried < std::size(kWords); ++word) {
    const std::string longer = text + kWords[word * kStride % std::size(kWords)];
    QUARTET_ASSIGN_OR_RETURN(const int now, LengthOf(tokenizer, longer));
    if (now <= length || now > tokens) {
      ++tried;
      continue;
    }
    text = longer;
    length = now;
    tried = 0;
  }
  if (length == tokens) return text;
  return absl::InvalidArgumentError(absl::StrCat(
      "it is ", tokens, ", but no text of exactly so many tokens was found for this tokenizer: ", Quoted(text, 40),
      " has ", length, length > tokens ? "" : ", and each word that could follow adds none, or too many"));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> PromptTexts(const Tokenizer& tokenizer, int count, int tokens) {
  std::vector<std::string> texts;
  for (int number = 0; number < count; ++number) {
    QUARTET_ASSIGN_OR_RETURN(texts.emplace_back(), PromptText(tokenizer, number, tokens));
  }
  return texts;
}

}  // namespace quartet
