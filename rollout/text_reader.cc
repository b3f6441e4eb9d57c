#include "rollout/text_reader.h"

#include <algorithm>
#include <string_view>

namespace quartet {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // what an incomplete character reads as
// Tokens that a decoder looks back at are fewer.
constexpr size_t kMostBefore = 5;

}  // namespace

TextReader::TextReader(const Tokenizer& tokenizer, absl::Span<const int32_t> before) : tokenizer_(tokenizer) {
  for (auto token = before.rbegin(); token != before.rend() && window_.size() < kMostBefore; ++token) {
    if (!IsSpecial(*token)) window_.push_back(*token);
  }
  std::reverse(window_.begin(), window_.end());
  std::string text = Whole();
  if (text.ends_with(kReplacement)) {
    // Its end would read differently with what follows.
    window_.clear();
    text.clear();
  }
  known_tokens_ = window_.size();
  known_bytes_ = text.size();
}

// A text is the same with and without it. It must not become all of the window: what follows would be read as a text's
// beginning, where many decoders drop a space.
bool TextReader::IsSpecial(int32_t token) const {
  return tokenizer_.Decode({token}, /*skip_special_tokens=*/true).empty() &&
         !tokenizer_.Decode({token}, /*skip_special_tokens=*/false).empty();
}

std::string TextReader::Read(int32_t token) {
  if (IsSpecial(token)) return "";
  window_.push_back(token);
  const std::string whole = Whole();
  if (whole.ends_with(kReplacement) || whole.size() < known_bytes_) return "";
  std::string piece = whole.substr(known_bytes_);
  window_.erase(window_.begin(), window_.begin() + static_cast<int64_t>(known_tokens_));
  known_tokens_ = window_.size();
  known_bytes_ = Whole().size();
  return piece;
}

std::string TextReader::Finish() const {
  const std::string whole = Whole();
  return whole.size() > known_bytes_ ? whole.substr(known_bytes_) : "";
}

}  // namespace quartet
