#include "core/generation/answer_text.h"

#include <algorithm>
#include <utility>

namespace quartet {
namespace {

bool GoesOn(char byte) { return (byte & 0xC0) == 0x80; }  // within a character

}  // namespace

int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return !GoesOn(byte); });
}

std::string AnswerText::Read(int32_t token) {
  ++tokens_;
  if (stop_string_ != nullptr || options_->silent.contains(token)) return "";
  if (const auto mark = options_->marks.find(token); mark != options_->marks.end()) {
    if (std::string begun = reader_.Finish(); !begun.empty()) {
      waiting_marks_.push_back({std::move(begun), &mark->second});
      return "";
    }
    marks_.emplace_back(held_.size(), &mark->second);
    return held_.empty() ? Give(0) : "";
  }
  const std::string piece = reader_.Read(token);
  characters_ += CountCharacters(piece);
  if (!piece.empty()) PlaceMarks(piece);
  if (options_->stop == nullptr) {
    held_ += piece;
    return Give(held_.size());
  }
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

void AnswerText::PlaceMarks(std::string_view piece) {
  for (const WaitingMark& mark : waiting_marks_) {
    size_t bytes = std::ranges::mismatch(piece, mark.begun).in1 - piece.begin();
    if (bytes == 0) bytes = std::find_if_not(piece.begin() + 1, piece.end(), GoesOn) - piece.begin();
    marks_.emplace_back(held_.size() + bytes, mark.name);
  }
  waiting_marks_.clear();
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
  const std::string rest = reader_.Finish();
  if (!rest.empty()) PlaceMarks(rest);
  held_ += rest;
  return Give(held_.size());
}

}  // namespace quartet
