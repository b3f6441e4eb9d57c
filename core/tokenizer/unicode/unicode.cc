#include "core/tokenizer/unicode/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "core/base/logging.h"

namespace quartet {
namespace {

// utf8proc knows Unicode 15; the tables say where the tokenizers of Hugging Face know another version.
struct CharRange {
  char32_t first, last;
};
struct LowercasePair {
  char32_t upper, lower;
};
#include "core/tokenizer/unicode/unicode_tables.inc"

template <size_t count>
bool In(const CharRange (&table)[count], char32_t c) {
  const CharRange* range = std::lower_bound(std::begin(table), std::end(table), c,
                                            [](const CharRange& r, char32_t x) { return r.last < x; });
  return range != std::end(table) && range->first <= c;
}

utf8proc_category_t Category(char32_t codepoint) { return utf8proc_category(static_cast<utf8proc_int32_t>(codepoint)); }

}  // namespace

char32_t CharAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> char32_t { return static_cast<unsigned char>(text[at + i]); };
  switch (CharBytes(text, at)) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    case 3:
      return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  }
}

void AppendUtf8(char32_t codepoint, std::string* text) {
  utf8proc_uint8_t bytes[4];
  text->append(reinterpret_cast<const char*>(bytes),
               utf8proc_encode_char(static_cast<utf8proc_int32_t>(codepoint), bytes));
}

bool IsWhiteSpace(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool IsNumeric(char32_t c) {
  const auto category = Category(c);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO ||
         In(kMoreNumeric, c);
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  const auto category = Category(c);
  const bool is_punctuation = category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
  return is_punctuation ? !In(kNoPunctuation, c) : In(kMorePunctuation, c);
}

bool IsPrintable(char32_t c) {
  const auto category = Category(c);
  return c == ' ' || (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_SO);
}

bool IsWordChar(char32_t c) {
  if (c == 0x200c || c == 0x200d) return true;
  const auto category = Category(c);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_ND) || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_PC || (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
         (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189) || In(kMoreWordChars, c);
}

std::string Normalize(std::string_view text, NormalForm form) {
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::kNfc || form == NormalForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  std::string normalized;
  normalized.reserve(text.size());
  const auto append = [&](std::string_view part) {
    if (std::all_of(part.begin(), part.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
      normalized.append(part);
      return;
    }
    utf8proc_uint8_t* mapped = nullptr;
    const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(part.data()), part.size(),
                                               &mapped, static_cast<utf8proc_option_t>(options));
    QUARTET_CHECK(size >= 0) << "utf8proc_map: " << utf8proc_errmsg(size);
    normalized.append(reinterpret_cast<const char*>(mapped), size);
    std::free(mapped);
  };
  // A character that is new to the reference has no class and no mapping there: what stands before and after it never
  // meets.
  size_t taken = 0;
  for (size_t at = 0, size; at < text.size(); at += size) {
    size = CharBytes(text, at);
    if (size == 1 || !In(kNormalizesToItself, CharAt(text, at))) continue;
    append(text.substr(taken, at - taken));
    normalized.append(text.substr(at, size));
    taken = at + size;
  }
  append(text.substr(taken));
  return normalized;
}

std::string Lowercase(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += CharBytes(text, at)) {
    const char32_t c = CharAt(text, at);
    if (c == 0x130) {  // the one character whose lower case is two
      lower.append("i\xcc\x87");
    } else {
      const auto* pair = std::lower_bound(std::begin(kMoreLowercase), std::end(kMoreLowercase), c,
                                          [](const LowercasePair& p, char32_t x) { return p.upper < x; });
      const bool listed = pair != std::end(kMoreLowercase) && pair->upper == c;
      AppendUtf8(listed ? pair->lower : utf8proc_tolower(static_cast<utf8proc_int32_t>(c)), &lower);
    }
  }
  return lower;
}

}  // namespace quartet
