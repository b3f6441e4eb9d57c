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
  if (const auto mark = options_->marks.find(token); mark != options_->marks.end()) {
    marks_.emplace_back(held_.size(), &mark->second);
    return held_.empty() ? Give(0) : "";
  }
  std::string piece = reader_.Read(token);
  characters_ += CountCharacters(piece);
  if (options_->stop == nullptr) return piece;
  for (const char byte : piece) {
    held_ += byte;
    state_ = options_->stop->Next(state_, byte);
    const std::string* found = options_->stop->EndingAt(state_);
    if (found == nullptr || tokens_ <= options_->min_tokens) continue;
    stop_string_ = found;
    return Give(held_.size() - (options_->includes_stop ? 0 : found->size()));
  }
  return Give(held_.size() - (options_->includes_stop ? 0 : options_->stop->Begun(state_)));
}

std::string AnswerText::Give(size_t bytes) {
  std::string text;
  size_t begin = 0;
  auto mark = marks_.begin();
  for (; mark != marks_.end() && mark->first <= bytes; ++mark) {
    text.append(held_, begin, mark->first - begin).append(*mark->second);
    begin = mark->first;
  }
  text.append(held_, begin, bytes - begin);
  held_.erase(0, bytes);
  marks_.erase(marks_.begin(), mark);
  for (auto& [behind, name] : marks_) behind -= bytes;
  return text;
}

std::string AnswerText::Finish() {
  if (stop_string_ != nullptr) return "";
  return Give(held_.size()) + reader_.Finish();
}

}  // namespace quartet
