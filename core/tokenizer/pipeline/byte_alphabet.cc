#include "core/tokenizer/pipeline/byte_alphabet.h"

#include <array>
#include <unordered_map>

#include "core/tokenizer/unicode/unicode.h"

namespace quartet {
namespace {

// Printable characters stand for themselves; the other bytes, in ascending order, for U+0100 and on.
struct ByteAlphabet {
  ByteAlphabet() {
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      const char32_t codepoint = printable ? byte : next++;
      AppendUtf8(codepoint, &chars[byte]);
      bytes.emplace(codepoint, static_cast<char>(byte));
    }
  }
  std::array<std::string, 256> chars;
  std::unordered_map<char32_t, char> bytes;
};

const ByteAlphabet& Alphabet() {
  static const auto* alphabet = new ByteAlphabet;
  return *alphabet;
}

}  // namespace

std::string ToByteChars(const std::string& text) {
  std::string mapped;
  mapped.reserve(text.size() * 2);
  for (const char byte : text) mapped += Alphabet().chars[static_cast<unsigned char>(byte)];
  return mapped;
}

std::string FromByteChars(const std::string& token) {
  std::string bytes;
  for (size_t at = 0; at < token.size(); at += CharBytes(token, at)) {
    const auto found = Alphabet().bytes.find(CharAt(token, at));
    if (found == Alphabet().bytes.end()) return token;
    bytes += found->second;
  }
  return bytes;
}

}  // namespace quartet
