// Token ids to text, one token after the other. LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/tokenizer/tokenizer.h"

namespace quartet {

// The pieces that it gives end to end are the text of the tokens, each of whole characters; special tokens have no
// text. The work for a token does not grow with the text. One thread.
class TextReader {
 public:
  // `before`: tokens that stand before the text, on which its first piece may depend (a decoder may join or strip).
  // `tokenizer` outlives the reader.
  explicit TextReader(const Tokenizer& tokenizer, absl::Span<const int32_t> before = {});

  // What the text grows by with `token`; "" while a character is incomplete.
  std::string Read(int32_t token);
  // What is left at the text's end: the incomplete character, as U+FFFD, or "".
  std::string Finish() const;

 private:
  bool IsSpecial(int32_t token) const;
  std::string Whole() const { return tokenizer_.Decode(window_, /*skip_special_tokens=*/true); }

  const Tokenizer& tokenizer_;
  // A token's text depends on those before it: it is what the text of the window grows by. The window begins at a token
  // whose text is known, and is short.
  std::vector<int32_t> window_;
  size_t known_tokens_ = 0;  // of window_, whose text has been given
  size_t known_bytes_ = 0;   // of their text
};

}  // namespace quartet
