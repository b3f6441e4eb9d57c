#include "core/data/order/permutation.h"

#include "core/base/splitmix64.h"

namespace quartet {
namespace {

constexpr int kRounds = 8;

}  // namespace

Permutation::Permutation(uint64_t seed, int64_t n)
    : seed_(SplitMix(seed)), n_(static_cast<uint64_t>(n)), half_bits_(1) {
  while ((uint64_t{1} << (2 * half_bits_)) < n_) ++half_bits_;
}

int64_t Permutation::operator()(int64_t place) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t x = static_cast<uint64_t>(place);
  do {
    uint64_t left = x >> half_bits_, right = x & mask;
    for (uint64_t round = 1; round <= kRounds; ++round) {
      const uint64_t mixed = SplitMixFinalise(SplitMixFinalise(seed_ + round * kSplitMixStride) ^ right);
      const uint64_t swapped = left ^ (mixed & mask);
      left = right;
      right = swapped;
    }
    x = left << half_bits_ | right;
  } while (x >= n_);
  return static_cast<int64_t>(x);
}

}  // namespace quartet
