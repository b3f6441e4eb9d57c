#include "core/rewards/boxed.h"

#include <cstddef>

namespace quartet {
namespace {

// Where the brace that closes `text`, which follows an open one, is; npos: nowhere.
size_t ClosingBrace(std::string_view text) {
  int depth = 1;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return i;
    }
  }
  return std::string_view::npos;
}

constexpr std::string_view kBoxes[] = {"\\boxed", "\\fbox"};

// Where the brace of the box is that begins at `at`, before which white space may stand; npos: there begins none.
size_t OpeningBrace(std::string_view text, size_t at) {
  for (const std::string_view box : kBoxes) {
    if (text.substr(at, box.size()) != box) continue;
    const size_t brace = text.find_first_not_of(" \t\n", at + box.size());
    return brace != std::string_view::npos && text[brace] == '{' ? brace : std::string_view::npos;
  }
  return std::string_view::npos;
}

}  // namespace

std::vector<std::string_view> BoxedContents(std::string_view text) {
  std::vector<std::string_view> contents;
  // The braces of the whole text are paired in one pass: those of each unclosed box would be gone through again else.
  std::vector<size_t> closing(text.size(), std::string_view::npos);
  std::vector<size_t> open;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == '{' || text[i + 1] == '}' || text[i + 1] == '\\')) {
      // "\\" before "boxed", as text that was escaped once too often has it, is none.
      if (text[i + 1] != '\\') ++i;
    } else if (text[i] == '{') {
      open.push_back(i);
    } else if (text[i] == '}' && !open.empty()) {
      closing[open.back()] = i;
      open.pop_back();
    }
  }
  for (size_t at = 0; at < text.size();) {
    const size_t brace = text[at] == '\\' ? OpeningBrace(text, at) : std::string_view::npos;
    if (brace == std::string_view::npos || closing[brace] == std::string_view::npos) {
      ++at;
      continue;
    }
    contents.push_back(text.substr(brace + 1, closing[brace] - brace - 1));
    at = closing[brace] + 1;
  }
  return contents;
}

std::optional<std::string_view> LastBoxed(std::string_view text) {
  for (size_t at = text.rfind('\\'); at != std::string_view::npos;
       at = at == 0 ? std::string_view::npos : text.rfind('\\', at - 1)) {
    const size_t brace = OpeningBrace(text, at);
    if (brace == std::string_view::npos) continue;
    const std::string_view content = text.substr(brace + 1);
    const size_t end = ClosingBrace(content);
    if (end == std::string_view::npos) return std::nullopt;
    return content.substr(0, end);
  }
  return std::nullopt;
}

}  // namespace quartet
