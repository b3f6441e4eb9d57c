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
  before.remove_prefix(before.size() - std::min(before.size(), kMostBefore));
  window_.assign(before.begin(), before.end());
  std::string text = Whole();
  if (text.ends_with(kReplacement)) {
    // Its end would read differently with what follows.
    window_.clear();
    text.clear();
  }
  known_tokens_ = window_.size();
  known_bytes_ = text.size();
}

std::string TextReader::Read(int32_t token) {
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
