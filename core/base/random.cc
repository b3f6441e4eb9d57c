#include "core/base/random.h"

#include <random>

#include "absl/strings/str_cat.h"

namespace quartet {

std::string RandomHexDigits(int words) {
  std::random_device random;
  std::string digits;
  for (int i = 0; i < words; ++i) absl::StrAppend(&digits, absl::Hex(random(), absl::kZeroPad8));
  return digits;
}

}  // namespace quartet
