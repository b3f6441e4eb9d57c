#include "core/errors/shown.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/utf8.h"

namespace quartet {
namespace {

std::string Escaped(std::string_view bytes, bool one_line) {
  const std::string text = ReplaceInvalidUtf8(bytes);
  std::string shown;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\n' || byte == '\t') {
      one_line ? shown.append(byte == '\n' ? "\\n" : "\\t") : shown.append(1, text[i]);
    } else if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppendFormat(&shown, "\\x%02x", byte);
    } else if (byte == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0) {  // U+0080 to U+009F
      absl::StrAppendFormat(&shown, "\\x%02x", static_cast<unsigned char>(text[++i]));
    } else {
      shown.push_back(text[i]);
    }
  }
  return shown;
}

std::string CutBetween(absl::string_view quote, std::string_view text, size_t most) {
  const size_t end = WholeCharacters(text, std::min(text.size(), most));
  std::string shown = absl::StrCat(quote, Escaped(text.substr(0, end), /*one_line=*/true), quote);
  if (end < text.size()) absl::StrAppend(&shown, "... (", text.size(), " bytes)");
  return shown;
}

}  // namespace

std::string Shown(std::string_view text) { return Escaped(text, /*one_line=*/false); }

std::string ShownOnOneLine(std::string_view text) {
  std::string joined;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty()) absl::StrAppend(&joined, joined.empty() ? "" : "; ", line);
  }
  return Escaped(joined, /*one_line=*/true);
}

std::string_view LastLines(std::string_view text, int lines) {
  while (!text.empty() && absl::ascii_isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  size_t end = text.size();  // of the line before
  for (; lines > 0; --lines) {
    end = end == 0 ? std::string_view::npos : text.rfind('\n', end - 1);
    if (end == std::string_view::npos) return text;
  }
  return text.substr(std::min(end + 1, text.size()));
}

std::string Quoted(std::string_view text, size_t most) { return CutBetween("\"", text, most); }

std::string Cut(std::string_view text, size_t most) { return CutBetween("", text, most); }

}  // namespace quartet
