// Random numbers: the same on every machine, for shuffling and seeds; and what nobody can know before, for names.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "core/base/splitmix64.h"

namespace quartet {

// SplitMix64. One thread.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // A generator of its own for every combination of `parts`, such as {seed, purpose, epoch}.
  static Random Of(std::initializer_list<uint64_t> parts) {
    uint64_t state = 0;
    for (uint64_t part : parts) state = Random(state ^ part).Next();
    return Random(state);
  }

  uint64_t Next() { return SplitMixFinalise(state_ += kSplitMixStride); }

  // Uniform in [0, bound), up to a bias of bound / 2^64. bound > 0.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }

  template <typename T>
  void Shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[Below(i)]);
  }

 private:
  uint64_t state_;
};

// 8 hexadecimal digits for each of `words`, of the system's randomness. Thread safe.
std::string RandomHexDigits(int words);

}  // namespace quartet
