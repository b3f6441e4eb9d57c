#include "core/service/rpc/wire_text.h"

#include <string_view>

#include "core/base/utf8.h"

namespace quartet {
namespace {

// Leaves room for the other metadata of an answer.
constexpr size_t kMostEncodedBytes = 6000;
constexpr std::string_view kTrace = "\nException raised from ";
constexpr std::string_view kTraceToo = "(most recent call first)";
constexpr std::string_view kCut = " ... (the log of the rank has the rest)";

size_t EncodedBytes(char c) { return c >= 0x20 && c <= 0x7e && c != '%' ? 1 : 3; }

}  // namespace

std::string WireText(absl::string_view whole) {
  std::string_view text(whole.data(), whole.size());
  if (const size_t trace = text.find(kTrace);
      trace != std::string_view::npos && text.find(kTraceToo, trace) != std::string_view::npos) {
    text = text.substr(0, trace);
  }
  std::string valid = ReplaceInvalidUtf8(text);
  size_t encoded = 0;
  for (const char c : valid) encoded += EncodedBytes(c);
  if (encoded <= kMostEncodedBytes) return valid;
  encoded = kCut.size();
  size_t end = 0;
  while ((encoded += EncodedBytes(valid[end])) <= kMostEncodedBytes) ++end;
  return valid.substr(0, WholeCharacters(valid, end)).append(kCut);
}

}  // namespace quartet
