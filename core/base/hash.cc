#include "core/base/hash.h"

#include <bit>
#include <cstring>

#include "core/base/splitmix64.h"

namespace quartet {

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

uint64_t HashBytes(std::string_view bytes, uint64_t seed) {
  uint64_t hash = SplitMixFinalise(seed + kSplitMixStride * (bytes.size() + 1));
  // Words of eight bytes, the first one the least significant; at the end zeros are for those that are missing.
  uint64_t word;
  for (; bytes.size() >= sizeof(word); bytes.remove_prefix(sizeof(word))) {
    std::memcpy(&word, bytes.data(), sizeof(word));
    hash = SplitMixFinalise((hash ^ word) + kSplitMixStride);
  }
  if (bytes.empty()) return hash;
  word = 0;
  std::memcpy(&word, bytes.data(), bytes.size());
  return SplitMixFinalise((hash ^ word) + kSplitMixStride);
}

}  // namespace quartet
