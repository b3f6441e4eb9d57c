#include "core/rewards/math/text/formulas.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "core/rewards/extract.h"

namespace quartet::math {
namespace {

// What stands between two parts of one answer: nothing, or commas, "and" and "or", and no other words.
bool Joins(std::string_view between) {
  constexpr size_t kMostBytes = 40;
  if (between.size() > kMostBytes || between.find('\n') != std::string_view::npos) return false;
  const auto letter = [](char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)); };
  bool joins = between.empty();
  for (size_t i = 0; i < between.size();) {
    if (letter(between[i])) {
      const size_t begin = i;
      while (i < between.size() && letter(between[i])) ++i;
      const std::string_view word = between.substr(begin, i - begin);
      const bool command = begin > 0 && between[begin - 1] == '\\';
      if (command && (word == "text" || word == "quad" || word == "qquad" || word == "mbox")) continue;
      if (command || (word != "and" && word != "or")) return false;
      joins = true;
    } else if (between[i] == ',' || between[i] == ';' || between[i] == '&') {
      joins = true;
      ++i;
    } else if (absl::string_view(" \t$*_~\\{}()").find(between[i]) != absl::string_view::npos) {
      ++i;
    } else {
      return false;
    }
  }
  return joins;
}

// What is between two parts, without the brackets and commands around the parts themselves.
std::string_view Between(std::string_view text, std::string_view part, std::string_view next) {
  const size_t from = part.data() + part.size() - text.data(), to = next.data() - text.data();
  std::string_view between = text.substr(from, to - from);
  if (!between.empty() && between.front() == '}') between.remove_prefix(1);
  if (!between.empty() && between.back() == '{') {
    const std::string_view command = StripSpace(between.substr(0, between.size() - 1));
    for (const std::string_view box : {"\\boxed", "\\fbox"}) {
      if (command.ends_with(box)) return command.substr(0, command.size() - box.size());
    }
  }
  return between;
}

// What is between the dollar signs of "$5 and $6": a number, then words or a sign.
bool IsMoney(std::string_view content) {
  if (content.empty() || !absl::ascii_isdigit(static_cast<unsigned char>(content.front())) || content.back() != ' ')
    return false;
  const char last = StripSpace(content).back();
  return absl::ascii_isalpha(static_cast<unsigned char>(last)) ||
         std::string_view("+-*/=,;:").find(last) != std::string_view::npos;
}

std::string Joined(std::string_view text, const std::vector<std::string_view>& parts, size_t first, size_t end) {
  std::string joined;
  for (size_t i = first; i < end; ++i) {
    if (i > first) {
      joined += Between(text, parts[i - 1], parts[i]).find("or") == std::string_view::npos ? " , " : " or ";
    }
    joined += parts[i];
  }
  return joined;
}

}  // namespace

std::vector<std::string_view> Formulas(std::string_view text) {
  std::vector<std::string_view> formulas;
  // What is not closed once is not closed later: in the text, and for $ and \\( in the line, which ends there.
  std::map<std::string_view, size_t> open_until;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '\\' && i + 1 < text.size() && text[i + 1] == '$') {
      i += 2;
      continue;
    }
    std::string_view close;
    if (text.substr(i, 2) == "$$") {
      close = "$$";
    } else if (text.substr(i, 2) == "\\[") {
      close = "\\]";
    } else if (text.substr(i, 2) == "\\(") {
      close = "\\)";
    } else if (text[i] == '$') {
      close = "$";
    } else {
      ++i;
      continue;
    }
    const size_t begin = i + close.size();
    const bool inline_only = close == "$" || close == "\\)";
    const size_t limit = inline_only ? std::min(text.find('\n', begin), text.size()) : text.size();
    const bool hopeless = begin < open_until[close];
    const std::string_view rest = hopeless ? "" : text.substr(begin, limit - begin);
    size_t end = rest.find(close);
    while (close == "$" && end != std::string_view::npos && end > 0 && rest[end - 1] == '\\') {
      end = rest.find(close, end + 1);
    }
    if (end == std::string_view::npos) {
      if (!hopeless) open_until[close] = limit;
      i = begin;
      continue;
    }
    const std::string_view content = rest.substr(0, end);
    if (close == "$" && IsMoney(content)) {
      i = begin;
      continue;
    }
    if (!StripSpace(content).empty()) formulas.push_back(content);
    i = begin + end + close.size();
  }
  return formulas;
}

std::string JoinLast(std::string_view text, const std::vector<std::string_view>& parts, size_t* first) {
  size_t begin = parts.size() - 1;
  while (begin > 0 && Joins(Between(text, parts[begin - 1], parts[begin]))) --begin;
  if (first != nullptr) *first = begin;
  return Joined(text, parts, begin, parts.size());
}

std::string JoinFirst(std::string_view text, const std::vector<std::string_view>& parts, size_t* last) {
  size_t end = 1;
  while (end < parts.size() && Joins(Between(text, parts[end - 1], parts[end]))) ++end;
  if (last != nullptr) *last = end - 1;
  return Joined(text, parts, 0, end);
}

}  // namespace quartet::math
