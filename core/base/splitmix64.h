// SplitMix64 (Steele, Lea and Flood: "Fast Splittable Pseudorandom Number Generators", 2014).
#pragma once

#include <cstdint>

// Kernels on GPUs mix with the same functions.
#ifdef __CUDACC__
#define QUARTET_SPLITMIX __host__ __device__
#else
#define QUARTET_SPLITMIX __attribute__((always_inline))
#endif

namespace quartet {

// 2^64 / golden ratio, odd. Output n of the generator is SplitMixFinalise(seed + n * kSplitMixStride).
inline constexpr uint64_t kSplitMixStride = 0x9E3779B97F4A7C15u;

// Its finaliser: a bijection of 64 bits by which every input bit reaches every output bit. Word: uint64_t or a vector.
template <typename Word>
QUARTET_SPLITMIX inline Word SplitMixFinalise(Word x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// The generator's first output where `seed` is its state: what numbers are mixed by.
inline uint64_t SplitMix(uint64_t seed) { return SplitMixFinalise(seed + kSplitMixStride); }

}  // namespace quartet
