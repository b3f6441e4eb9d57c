#include "core/base/hash.h"

#include "core/base/splitmix64.h"

namespace quartet {

uint64_t HashBytes(std::string_view bytes, uint64_t seed) {
  uint64_t hash = SplitMixFinalise(seed + kSplitMixStride * (bytes.size() + 1));
  size_t i = 0;
  while (i < bytes.size()) {
    uint64_t word = 0;
    for (int shift = 0; shift < 64 && i < bytes.size(); shift += 8, ++i) {
      word |= uint64_t{static_cast<unsigned char>(bytes[i])} << shift;
    }
    hash = SplitMixFinalise((hash ^ word) + kSplitMixStride);
  }
  return hash;
}

}  // namespace quartet
