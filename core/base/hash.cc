#include "core/base/hash.h"

namespace quartet {
namespace {

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit.
uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 27;
  x *= 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t HashBytes(std::string_view bytes, uint64_t seed) {
  uint64_t hash = Mix(seed + 0x9e3779b97f4a7c15 * (bytes.size() + 1));
  size_t i = 0;
  while (i < bytes.size()) {
    uint64_t word = 0;
    for (int shift = 0; shift < 64 && i < bytes.size(); shift += 8, ++i) {
      word |= uint64_t{static_cast<unsigned char>(bytes[i])} << shift;
    }
    hash = Mix((hash ^ word) + 0x9e3779b97f4a7c15);
  }
  return hash;
}

}  // namespace quartet
