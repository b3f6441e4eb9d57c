// Token ids to text, one token after the other. LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/tokenizer/tokenizer.h"

namespace quartet {

// The pieces that it gives end to end are the text of the tokens, each of whole characters; special tokens have no
// text. Spaces are not cleaned up, whatever the tokenizer's folder says, as in vLLM. Bytes that are no character read
// as U+FFFD, once or several times. The work for a token does not grow with the text, whatever its bytes. One thread.
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
  std::string Whole() const { return tokenizer_.DecodeUncleaned(window_, /*skip_special_tokens=*/true); }
  void Shorten();

  const Tokenizer& tokenizer_;
  // A token's text depends on those before it: it is what the text of the window grows by. The window is short.
  std::vector<int32_t> window_;
  int64_t known_tokens_ = 0;  // of window_: those before the last token that ended with a character
  std::string known_;         // of the window's text, what has been given
};

}  // namespace quartet
