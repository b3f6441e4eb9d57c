// Sixteen floats at a time, for the loops of models that are not matrix products of oneDNN's or MKL's. LibTorch-free.
//
// Written in the compiler's portable vectors: a function marked QUARTET_SIMD_CLONES is compiled once per instruction
// set (its helpers are inlined into each copy), and the best copy is chosen when the program starts. Not under
// sanitizers, which instrument that choice, made before their runtime is ready.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define QUARTET_SIMD_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
// Of a function that runs where HasSixteenLanes() alone, and of one that runs elsewhere.
#define QUARTET_SIMD_SIXTEEN __attribute__((target("arch=x86-64-v4")))
#define QUARTET_SIMD_EIGHT_CLONES __attribute__((target_clones("default", "arch=x86-64-v3")))
#else
#define QUARTET_SIMD_CLONES
#define QUARTET_SIMD_SIXTEEN
#define QUARTET_SIMD_EIGHT_CLONES
#endif
#define QUARTET_SIMD_INLINE __attribute__((always_inline)) inline

namespace quartet::simd {

inline constexpr int kLanes = 16;
typedef float F16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));
typedef uint32_t U16 __attribute__((vector_size(64)));
typedef uint16_t H16 __attribute__((vector_size(32)));
typedef float F8 __attribute__((vector_size(32)));
typedef uint32_t U8 __attribute__((vector_size(32)));

// Whether this machine's registers have sixteen lanes (x86-64-v4). Where they have eight, compilers keep each F16 in
// memory: loops that add to many sums take F8 there. Sums of a lane are the same bits either way.
inline bool HasSixteenLanes() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl");
  return has;
#else
  return false;
#endif
}
template <typename V>  // F8 or F16
inline constexpr int kLanesOf = sizeof(V) / sizeof(float);

// No alignment is needed.
template <typename V>
QUARTET_SIMD_INLINE void LoadTo(const float* from, V* to) {
  std::memcpy(to, from, sizeof(V));
}
template <typename V>
QUARTET_SIMD_INLINE void StoreFrom(const V& value, float* to) {
  std::memcpy(to, &value, sizeof(V));
}
QUARTET_SIMD_INLINE F16 Load(const float* from) {
  F16 value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
// From bf16: the upper halves of floats.
QUARTET_SIMD_INLINE F16 Load(const uint16_t* from) {
  H16 halves;
  std::memcpy(&halves, from, sizeof(halves));
  const U16 bits = __builtin_convertvector(halves, U16) << 16;
  F16 value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
// From bf16, twice as many as V has lanes: those at even places and those at odd ones.
template <typename V>
QUARTET_SIMD_INLINE void LoadPairs(const uint16_t* from, V* even, V* odd) {
  using Bits = std::conditional_t<std::is_same_v<V, F16>, U16, U8>;
  Bits pairs;
  std::memcpy(&pairs, from, sizeof(pairs));
  const Bits low = pairs << 16, high = pairs & 0xFFFF0000u;
  std::memcpy(even, &low, sizeof(low));
  std::memcpy(odd, &high, sizeof(high));
}
// The first `count`, then zeros where there are fewer than sixteen. Element: float, or uint16_t for bf16.
template <typename Element>
QUARTET_SIMD_INLINE F16 LoadSome(const Element* from, int64_t count) {
  if (count >= kLanes) return Load(from);
  Element all[kLanes] = {};
  std::memcpy(all, from, count * sizeof(Element));
  return Load(all);
}
QUARTET_SIMD_INLINE F16 Splat(float x) { return x - F16{}; }

// Asks for memory that is read soon. A core can wait for more lines on their way to its second cache than to its first.
QUARTET_SIMD_INLINE void PrefetchToSecondCache(const void* memory) { __builtin_prefetch(memory, /*rw=*/0, 2); }

// The bits of each number as bf16, rounded to the nearest, ties to even.
QUARTET_SIMD_INLINE U16 RoundedToBf16(const F16& value) {
  U16 bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const U16 rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return value != value ? U16{} + 0x7FC0 : rounded;
}
QUARTET_SIMD_INLINE void Store(float* to, const F16& value) { std::memcpy(to, &value, sizeof(value)); }
QUARTET_SIMD_INLINE void Store(uint16_t* to, const F16& value) {
  const H16 halves = __builtin_convertvector(RoundedToBf16(value), H16);
  std::memcpy(to, &halves, sizeof(halves));
}
// The first `count`, at most all sixteen.
template <typename Element>
QUARTET_SIMD_INLINE void StoreSome(Element* to, const F16& value, int64_t count) {
  if (count >= kLanes) return Store(to, value);
  Element all[kLanes];
  Store(all, value);
  std::memcpy(to, all, count * sizeof(Element));
}
// As the value reads when it has been stored as Element.
template <typename Element>
QUARTET_SIMD_INLINE F16 RoundedTo(const F16& value) {
  if constexpr (std::is_same_v<Element, float>) {
    return value;
  } else {
    const U16 bits = RoundedToBf16(value) << 16;
    F16 rounded;
    std::memcpy(&rounded, &bits, sizeof(rounded));
    return rounded;
  }
}

QUARTET_SIMD_INLINE float Sum(const F16& v) {
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}
QUARTET_SIMD_INLINE float Max(const F16& v) {
  typedef float F4 __attribute__((vector_size(16)));
  F8 halves[2];
  std::memcpy(halves, &v, sizeof(v));
  const F8 eight = halves[1] > halves[0] ? halves[1] : halves[0];
  F4 quarters[2];
  std::memcpy(quarters, &eight, sizeof(eight));
  const F4 four = quarters[1] > quarters[0] ? quarters[1] : quarters[0];
  const float left = four[2] > four[0] ? four[2] : four[0], right = four[3] > four[1] ? four[3] : four[1];
  return right > left ? right : left;
}

// e^x for x <= 0, within 2 units in the last place; 0 below -87, where the result is no normal number.
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor polynomial of degree 7 (remainder below 5e-9).
QUARTET_SIMD_INLINE F16 ExpNonPositive(const F16& x) {
  const F16 clamped = x < -87.0f ? Splat(-87.0f) : x;
  // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
  const F16 n = (clamped * 1.44269504088896341f + 12582912.0f) - 12582912.0f;
  const F16 r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  F16 p = Splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const I16 exponent = (__builtin_convertvector(n, I16) + 127) << 23;
  F16 scale;
  std::memcpy(&scale, &exponent, sizeof(scale));
  return x < -87.0f ? F16{} : p * scale;
}

}  // namespace quartet::simd
