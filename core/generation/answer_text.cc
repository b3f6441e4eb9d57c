#include "core/generation/answer_text.h"

#include <algorithm>
#include <utility>

namespace quartet {

int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::string AnswerText::Read(int32_t token) {
  ++tokens_;
  if (stop_string_ != nullptr || options_->silent.contains(token)) return "";
  std::string piece = reader_.Read(token);
  characters_ += CountCharacters(piece);
  if (options_->stop == nullptr) return piece;
  for (const char byte : piece) {
    held_ += byte;
    state_ = options_->stop->Next(state_, byte);
    const std::string* found = options_->stop->EndingAt(state_);
    if (found == nullptr || tokens_ <= options_->min_tokens) continue;
    stop_string_ = found;
    if (!options_->includes_stop) held_.resize(held_.size() - found->size());
    return std::exchange(held_, "");
  }
  const int64_t kept = options_->includes_stop ? 0 : options_->stop->Begun(state_);
  std::string text = held_.substr(0, held_.size() - kept);
  held_.erase(0, text.size());
  return text;
}

std::string AnswerText::Finish() {
  if (stop_string_ != nullptr) return "";
  return std::exchange(held_, "") + reader_.Finish();
}

}  // namespace quartet
