#include "core/generation/text_reader.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace quartet {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // what an incomplete character reads as
// Tokens that a decoder looks back at are fewer; so are those that a character can lie in.
constexpr int64_t kMostBefore = 5;
// Of a prompt, that are looked through for these.
constexpr int64_t kMostSkipped = 64;
// With tokens that are not given yet, since no character has ended with one of them.
constexpr size_t kLongestWindow = 16;

// How much of `text` cannot become something else by what follows. An incomplete character has at most three bytes, for
// each of which a decoder may write a replacement.
size_t WholeBytes(std::string_view text) {
  size_t bytes = text.size();
  for (int i = 0; i < 3 && text.substr(0, bytes).ends_with(kReplacement); ++i) bytes -= kReplacement.size();
  return bytes;
}

}  // namespace

TextReader::TextReader(const Tokenizer& tokenizer, absl::Span<const int32_t> before) : tokenizer_(tokenizer) {
  if (static_cast<int64_t>(before.size()) > kMostSkipped) before.remove_prefix(before.size() - kMostSkipped);
  for (auto token = before.rbegin(); token != before.rend() && std::ssize(window_) < kMostBefore; ++token) {
    if (!IsSpecial(*token)) window_.push_back(*token);
  }
  std::reverse(window_.begin(), window_.end());
  known_ = Whole();
  // Not from within a character, if it can be.
  for (size_t first = 1; first < window_.size() && known_.ends_with(kReplacement); ++first) {
    const std::vector<int32_t> shorter(window_.begin() + static_cast<int64_t>(first), window_.end());
    std::string text = tokenizer_.DecodeUncleaned(shorter, /*skip_special_tokens=*/true);
    if (text.ends_with(kReplacement)) continue;
    window_ = shorter;
    known_ = std::move(text);
  }
  known_tokens_ = std::ssize(window_);
}

// A text is the same with and without it. It must not become all of the window: what follows would be read as a text's
// beginning, where many decoders drop a space.
bool TextReader::IsSpecial(int32_t token) const {
  return tokenizer_.DecodeUncleaned({token}, /*skip_special_tokens=*/true).empty() &&
         !tokenizer_.DecodeUncleaned({token}, /*skip_special_tokens=*/false).empty();
}

std::string TextReader::Read(int32_t token) {
  if (IsSpecial(token)) return "";
  window_.push_back(token);
  std::string text = Whole();
  if (!text.starts_with(known_)) {
    // The decoder reads what was given differently now, since bytes follow it.
    window_.erase(window_.begin(), known_tokens_ > 0 ? window_.begin() + known_tokens_ : window_.end() - 1);
    known_tokens_ = 0;
    known_.clear();
    text = Whole();
  }
  const bool whole = !text.ends_with(kReplacement);
  if (!whole && window_.size() <= kLongestWindow) return "";
  const size_t bytes = WholeBytes(text);
  std::string piece = text.substr(known_.size(), std::max(bytes, known_.size()) - known_.size());
  known_ += piece;
  if (whole && !piece.empty()) {
    window_.erase(window_.begin(), window_.begin() + known_tokens_);
    known_tokens_ = std::ssize(window_);
    known_ = Whole();
  } else if (window_.size() > kLongestWindow) {
    Shorten();
  }
  return piece;
}

// Where for long no token's end has been a character's.
void TextReader::Shorten() {
  window_.erase(window_.begin(), window_.end() - kMostBefore);
  known_tokens_ = 0;
  known_ = Whole();
  known_.resize(WholeBytes(known_));
}

std::string TextReader::Finish() const {
  const std::string text = Whole();
  return text.starts_with(known_) ? text.substr(known_.size()) : "";
}

}  // namespace quartet
