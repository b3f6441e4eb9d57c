#include "core/base/hash_text.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace quartet {

std::string HashText(uint64_t hash) { return absl::StrFormat("%016x", hash); }

std::optional<uint64_t> ParseHash(std::string_view text) {
  constexpr size_t kDigits = 16;
  uint64_t hash = 0;
  if (text.size() != kDigits || !std::ranges::all_of(text, absl::ascii_isxdigit) ||
      !absl::SimpleHexAtoi(absl::string_view(text.data(), text.size()), &hash)) {
    return std::nullopt;
  }
  return hash;
}

}  // namespace quartet
