#include "rollout/http/answer_text.h"

#include <algorithm>

namespace quartet {

int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::string AnswerText::Read(int32_t token) {
  // Stop strings that end in here have not ended the answer (min_tokens), or there would be no further token.
  const size_t passed = held_.size();
  if (!silent_.contains(token)) {
    const std::string piece = reader_.Read(token);
    characters_ += CountCharacters(piece);
    held_ += piece;
  }
  size_t told = held_.size();
  for (const std::string& stop : stop_) {
    const size_t from = passed + 1 > stop.size() ? passed + 1 - stop.size() : 0;
    told = std::min(told, held_.find(stop, from));
    for (size_t count = std::min(stop.size() - 1, held_.size()); count > 0; --count) {
      if (held_.ends_with(std::string_view(stop).substr(0, count))) {
        told = std::min(told, held_.size() - count);
        break;
      }
    }
  }
  std::string text = held_.substr(0, told);
  held_.erase(0, told);
  return text;
}

std::string AnswerText::Finish(const std::string& stop_string) {
  std::string text = held_ + reader_.Finish();
  held_.clear();
  if (!stop_string.empty()) text.erase(std::min(text.size(), text.find(stop_string)));
  return text;
}

}  // namespace quartet
