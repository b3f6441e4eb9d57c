#include "core/tokenizer/jinja/values/text.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "core/tokenizer/unicode/unicode.h"

namespace quartet::jinja {
namespace {

bool IsLetter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
char Upper(char c) { return static_cast<char>(std::toupper(static_cast<unsigned char>(c))); }
char Lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

bool EndsLine(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

std::vector<std::string> Characters(std::string_view text) {
  std::vector<std::string> characters;
  for (size_t at = 0, size; at < text.size(); at += size) {
    size = CharBytes(text, at);
    characters.emplace_back(text.substr(at, size));
  }
  return characters;
}

bool IsSpace(char32_t c) { return IsWhiteSpace(c) || (c >= 0x1c && c <= 0x1f); }

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::string Strip(const std::string& text, const std::optional<std::string>& which, bool left, bool right) {
  const std::vector<std::string> candidates = Characters(which.value_or(""));
  const auto goes = [&](size_t at) {
    if (!which) return IsSpace(CharAt(text, at));
    const std::string_view character = std::string_view(text).substr(at, CharBytes(text, at));
    return std::find(candidates.begin(), candidates.end(), character) != candidates.end();
  };
  size_t begin = 0, end = text.size();
  while (left && begin < end && goes(begin)) begin += CharBytes(text, begin);
  while (right && end > begin) {
    size_t last = end - 1;
    while ((static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
    if (!goes(last)) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

std::string ReplaceText(const std::string& text, const std::string& from, const std::string& to, int64_t most) {
  std::string replaced;
  size_t at = 0;
  for (size_t found; most-- != 0 && (found = text.find(from, at)) != std::string::npos; at = found + from.size()) {
    replaced.append(text, at, found - at).append(to);
  }
  return replaced.append(text, at);
}

std::vector<std::string> Split(const std::string& text, const std::optional<std::string>& separator, int64_t most,
                               bool from_right) {
  std::vector<std::string> parts;
  if (separator && from_right) {
    size_t end = text.size();
    for (size_t found; most-- != 0 && end >= separator->size() &&
                       (found = text.rfind(*separator, end - separator->size())) != std::string::npos;
         end = found) {
      parts.push_back(text.substr(found + separator->size(), end - found - separator->size()));
    }
    parts.push_back(text.substr(0, end));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  if (separator) {
    size_t at = 0;
    for (size_t found; most-- != 0 && (found = text.find(*separator, at)) != std::string::npos;
         at = found + separator->size()) {
      parts.push_back(text.substr(at, found - at));
    }
    parts.push_back(text.substr(at));
    return parts;
  }
  // Words, and what is left over with its white space.
  std::string rest = Strip(text, std::nullopt, !from_right, from_right);
  while (!rest.empty()) {
    size_t begin = std::string::npos, end = 0;  // of the white space that cuts
    for (size_t at = 0, size; at < rest.size(); at += size) {
      size = CharBytes(rest, at);
      if (!IsSpace(CharAt(rest, at))) {
        if (begin != std::string::npos && !from_right && end == at) break;
        continue;
      }
      if (begin == std::string::npos || end != at) begin = at;
      end = at + size;
    }
    if (most-- == 0 || begin == std::string::npos) {
      parts.push_back(std::exchange(rest, ""));
    } else if (from_right) {
      parts.push_back(rest.substr(end));
      rest = rest.substr(0, begin);
    } else {
      parts.push_back(rest.substr(0, begin));
      rest = rest.substr(end);
    }
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> SplitLines(const std::string& text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t at = 0, size; at < text.size(); at += size) {
    size = CharBytes(text, at);
    if (!EndsLine(CharAt(text, at))) continue;
    if (text.compare(at, 2, "\r\n") == 0) size = 2;
    lines.push_back(text.substr(begin, (keep_ends ? at + size : at) - begin));
    begin = at + size;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string EscapeHtml(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&#34;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string Uppercase(std::string text) {
  for (char& c : text) c = Upper(c);
  return text;
}

std::string Capitalize(const std::string& text) {
  std::string capitalized = text;
  for (size_t i = 0; i < text.size(); ++i) capitalized[i] = i == 0 ? Upper(text[i]) : Lower(text[i]);
  return capitalized;
}

std::string Title(const std::string& text) {
  std::string title = text;
  for (size_t i = 0; i < text.size(); ++i) title[i] = i > 0 && IsLetter(text[i - 1]) ? Lower(text[i]) : Upper(text[i]);
  return title;
}

std::string TitleOfWords(const std::string& text) {
  std::string title = text;
  bool begins = true;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = std::string_view("-({[<").find(text[i]) != std::string_view::npos || IsSpace(text[i]);
    title[i] = begins ? Upper(text[i]) : Lower(text[i]);
    begins = between;
  }
  return title;
}

}  // namespace quartet::jinja
