#include "core/checkpoint/hashed_text.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "core/base/hash.h"
#include "core/base/hash_text.h"
#include "core/base/logging.h"

namespace quartet {
namespace {

constexpr std::string_view kPrefix = "{\"hash\": \"";
constexpr size_t kDigits = 16;
constexpr size_t kHashedFrom = kPrefix.size() + kDigits;

std::string HashOf(std::string_view text) { return HashText(HashBytes(text)); }

}  // namespace

std::string WithOwnHash(std::string_view object) {
  QUARTET_CHECK(object.size() > 2 && object[0] == '{');
  const std::string rest = absl::StrCat("\", ", std::string(object.substr(1)));
  return absl::StrCat(std::string(kPrefix), HashOf(rest), rest);
}

bool BeginsWithHash(std::string_view text) { return text.starts_with(kPrefix) && text.size() >= kHashedFrom; }

absl::Status CheckOwnHash(std::string_view text, std::string_view path) {
  QUARTET_CHECK(BeginsWithHash(text));
  if (HashOf(text.substr(kHashedFrom)) == text.substr(kPrefix.size(), kDigits)) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(std::string(path), ": does not have the hash that it begins with: it was cut short or altered"));
}

}  // namespace quartet
