#include "core/rewards/math/text/amends.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"

namespace quartet::math {
namespace {

bool IsAsciiLetter(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)) != 0; }

bool IsAny(const std::string& word, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

// In small letters.
std::vector<std::string> LowerWords(std::string_view text) {
  std::vector<std::string> words;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!IsAsciiLetter(text[i])) continue;
    if (i == 0 || !IsAsciiLetter(text[i - 1])) words.emplace_back();
    words.back() += absl::ascii_tolower(static_cast<unsigned char>(text[i]));
  }
  return words;
}

bool HasDigit(std::string_view text) {
  return std::ranges::any_of(text, [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); });
}

}  // namespace

bool Retracts(std::string_view behind) {
  constexpr size_t kMostBytes = 100, kMostWords = 5;
  behind = behind.substr(0, kMostBytes);
  constexpr size_t kAtOnce = 12;
  if (DeniesInChinese(behind.substr(0, kAtOnce))) return true;
  const size_t begin = static_cast<size_t>(std::ranges::find_if(behind, IsAsciiLetter) - behind.begin());
  // Of what is computed further, or of another formula.
  if (HasDigit(behind.substr(0, begin)) || behind.substr(0, begin).find('\\') != std::string_view::npos) return false;
  behind.remove_prefix(begin);
  behind = behind.substr(0, behind.find_first_of(".!?\n", 0));
  std::vector<std::string> words = LowerWords(behind);
  if (words.empty()) return false;
  if (IsAny(words[0], {"wait", "hmm", "oops", "sorry", "correction", "nope", "actually"})) return true;
  if (words[0] == "no") return behind.size() == 2 || behind[2] != ' ';
  if (words[0] == "let" && std::ranges::find(words, "correct") != words.end()) return true;
  // Of what was said, not of another thing: "Option A is wrong".
  for (size_t i = 0; i < std::min(words.size(), kMostWords); ++i) {
    if (IsAny(words[i], {"incorrect", "wrong", "false", "mistaken", "kidding"})) return true;
    if (words[i] == "should" && i + 1 < words.size() && words[i + 1] == "be" && HasDigit(behind)) return true;
    if (!IsAny(words[i], {"that", "this", "it", "which", "is", "was", "s", "just", "i", "m", "am", "the", "answer",
                          "but", "however", "seems", "looks", "clearly", "completely"})) {
      return false;
    }
  }
  return false;
}

bool Offers(std::string_view behind) {
  constexpr size_t kMostBytes = 40;
  const std::vector<std::string> words = LowerWords(behind.substr(0, kMostBytes));
  return !words.empty() &&
         IsAny(words[0], {"or", "maybe", "perhaps", "possibly", "alternatively", "else", "either", "otherwise"});
}

bool DeniesInChinese(std::string_view text) {
  std::string rest(text);
  // "That's right", "and not 71": the value stays.
  for (const std::string_view harmless : {"没错", "沒錯", "不错", "不錯", "而不是", "而非"}) {
    for (size_t at; (at = rest.find(harmless)) != std::string::npos;) rest.erase(at, harmless.size());
  }
  for (const std::string_view word :
       {"不是", "不为", "不為", "不等", "不对", "不對", "不会", "不可能", "并非", "错", "錯"}) {
    if (rest.find(word) != std::string::npos) return true;
  }
  return false;
}

bool BoundsInChinese(std::string_view text) {
  for (const std::string_view word : {"至少", "至多", "最多", "最少", "大于", "小于", "超过", "不足"}) {
    if (text.find(word) != std::string_view::npos) return true;
  }
  return false;
}

bool IsGuess(std::string_view between) {
  constexpr size_t kMostBytes = 80, kMostWords = 3;
  // Steps of one formula.
  if (between.size() > kMostBytes || between.find('=') != std::string_view::npos) return false;
  const std::vector<std::string> words = LowerWords(between);
  const auto offers = [](const std::string& word) {
    return IsAny(word, {"or", "maybe", "perhaps", "possibly", "alternatively", "else", "either", "otherwise"});
  };
  if (std::ranges::any_of(words, offers) || between.find("或") != std::string_view::npos) return true;
  const bool ends_sentence =
      between.find(". ") != std::string_view::npos || between.find(".\n") != std::string_view::npos;
  const bool is_chinese = std::ranges::any_of(between, [](char c) { return (c & 0x80) != 0; });
  return words.empty() || (words.size() <= kMostWords && !ends_sentence && !is_chinese);
}

bool IsOfAnother(std::string_view before) {
  constexpr size_t kMostBytes = 80;
  before = before.substr(before.size() - std::min(before.size(), kMostBytes));
  if (const size_t end = before.find_last_of(".!?\n,;:"); end != std::string_view::npos) before.remove_prefix(end + 1);
  std::vector<std::string> words = LowerWords(before);
  while (!words.empty() && IsAny(words.back(), {"the", "final", "correct", "right", "exact", "numerical", "simplified",
                                                "my", "our", "your", "this", "that", "desired", "required"})) {
    words.pop_back();
  }
  if (words.empty()) return false;
  if (words.back() == "of") return words.size() < 2 || words[words.size() - 2] != "value";
  return IsAny(words.back(), {"twice", "thrice", "half", "double", "triple", "times", "other", "another", "first",
                              "second", "third", "previous", "wrong", "minus", "negative", "incorrect"});
}

}  // namespace quartet::math
