// UTF-8 and the Unicode facts that tokenizers ask for, as Hugging Face's tokenizers 0.22 know them, which is Unicode 9
// for normal forms and Unicode 16 for most else; tools/golden/make_unicode_tables.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quartet {

// Bytes of the character that begins at `text[at]`; `text` is valid UTF-8.
inline size_t CharBytes(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}
char32_t CharAt(std::string_view text, size_t at);
void AppendUtf8(char32_t codepoint, std::string* text);

bool IsWhiteSpace(char32_t codepoint);   // the property White_Space
bool IsNumeric(char32_t codepoint);      // categories Nd, Nl, No
bool IsPunctuation(char32_t codepoint);  // categories P*, and ASCII's punctuation and symbols
bool IsPrintable(
    char32_t codepoint);              // as Python's str.isprintable: assigned, and no control, separator or private use
bool IsWordChar(char32_t codepoint);  // \w: letters, marks, decimal digits, connectors, joiners

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// `text` is valid UTF-8.
std::string Normalize(std::string_view text, NormalForm form);
std::string Lowercase(std::string_view text);

}  // namespace quartet
