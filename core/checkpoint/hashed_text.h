// Texts of JSON objects that begin with their own hash, so that one that was cut short or altered is known:
//   {"hash": "<16 hexadecimal digits, of all that follows>", ...}
// LibTorch-free. Thread safe.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace quartet {

// `object` is the text of an object that has a field.
std::string WithOwnHash(std::string_view object);

// Whether a hash is what the text begins with.
bool BeginsWithHash(std::string_view text);
// DATA_LOSS names `path` where the text, which begins with a hash, is another.
absl::Status CheckOwnHash(std::string_view text, std::string_view path);

}  // namespace quartet
