// A random order of 0 ... n - 1, one place at a time, in constant memory.
#pragma once

#include <cstdint>

namespace quartet {

// A bijection of [0, n) that follows from the seed: a Feistel network on the smallest power of 4 that is not below n,
// its results beyond n put through it again ("cycle walking": Black and Rogaway, "Ciphers with Arbitrary Finite
// Domains", 2002). Immutable.
class Permutation {
 public:
  // 0 < n <= 2^62.
  Permutation(uint64_t seed, int64_t n);

  // Where `place` in [0, n) goes.
  int64_t operator()(int64_t place) const;

 private:
  uint64_t seed_;
  uint64_t n_;
  int half_bits_;
};

}  // namespace quartet
