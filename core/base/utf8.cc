#include "core/base/utf8.h"

namespace quartet {
namespace {

// Bytes of the well-formed character at `at`, or 0; then `*broken` is the length of the maximal broken part.
size_t WellFormed(std::string_view text, size_t at, size_t* broken) {
  const auto byte = [&](size_t i) -> unsigned { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  const unsigned lead = byte(at);
  *broken = 1;
  if (lead < 0x80) return 1;
  size_t length;
  unsigned low = 0x80, high = 0xbf;  // what the second byte may be
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
  } else {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if (byte(at + i) < low || byte(at + i) > high) {
      *broken = i;
      return 0;
    }
    low = 0x80;
    high = 0xbf;
  }
  return length;
}

}  // namespace

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    size_t broken;
    if (const size_t length = WellFormed(bytes, at, &broken)) {
      text.append(bytes.substr(at, length));
      at += length;
    } else {
      text.append("\xef\xbf\xbd");
      at += broken;
    }
  }
  return text;
}

size_t WholeCharacters(std::string_view text, size_t bytes) {
  // Bytes that a character goes on with are 10xxxxxx.
  while (bytes > 0 && bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  return bytes;
}

bool IsValidUtf8(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    size_t broken;
    const size_t length = WellFormed(bytes, at, &broken);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

}  // namespace quartet
