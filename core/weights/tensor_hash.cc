#include "core/weights/tensor_hash.h"

#include <cstring>

#include "core/base/logging.h"

// One copy of the loop per instruction set, chosen when the program starts. Sanitizers instrument code that runs before
// their runtime is ready if there are such copies.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define QUARTET_CLONED __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define QUARTET_CLONED
#endif

namespace quartet {
namespace {

// 2^64 / golden ratio, odd: consecutive positions land far apart.
constexpr uint64_t kStride = 0x9E3779B97F4A7C15u;

// The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014).
__attribute__((always_inline)) inline uint64_t Finalise(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

template <typename Bits>
__attribute__((always_inline)) inline uint64_t HashLoop(const unsigned char* data, uint64_t position, int64_t count) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
    sum += Finalise((position + static_cast<uint64_t>(i)) * kStride + bits);
  }
  return sum;
}

QUARTET_CLONED uint64_t Hash8(const unsigned char* data, uint64_t position, int64_t count) {
  return HashLoop<uint8_t>(data, position, count);
}
QUARTET_CLONED uint64_t Hash16(const unsigned char* data, uint64_t position, int64_t count) {
  return HashLoop<uint16_t>(data, position, count);
}
QUARTET_CLONED uint64_t Hash32(const unsigned char* data, uint64_t position, int64_t count) {
  return HashLoop<uint32_t>(data, position, count);
}
QUARTET_CLONED uint64_t Hash64(const unsigned char* data, uint64_t position, int64_t count) {
  return HashLoop<uint64_t>(data, position, count);
}

}  // namespace

uint64_t HashElements(const void* data, Dtype dtype, int64_t first_position, int64_t count) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  const auto position = static_cast<uint64_t>(first_position);
  switch (DtypeSize(dtype)) {
    case 1:
      return Hash8(bytes, position, count);
    case 2:
      return Hash16(bytes, position, count);
    case 4:
      return Hash32(bytes, position, count);
    case 8:
      return Hash64(bytes, position, count);
  }
  QUARTET_CHECK(false) << "no hash for elements of " << DtypeSize(dtype) << " bytes";
  return 0;
}

}  // namespace quartet
