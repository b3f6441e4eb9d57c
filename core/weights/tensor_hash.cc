#include "core/weights/tensor_hash.h"

#include <cstring>

#include "core/base/logging.h"
#include "core/base/splitmix64.h"
#include "core/hardware/simd.h"

namespace quartet {
namespace {

template <typename Bits>
QUARTET_SIMD_INLINE uint64_t HashLoop(const unsigned char* data, uint64_t position, int64_t count) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
    sum += SplitMixFinalise((position + static_cast<uint64_t>(i)) * kSplitMixStride + bits);
  }
  return sum;
}

QUARTET_SIMD_CLONES uint64_t Hash8(const unsigned char* data, uint64_t position, int64_t count) {
  return HashLoop<uint8_t>(data, position, count);
}
QUARTET_SIMD_CLONES uint64_t Hash16(const unsigned char* data, uint64_t position, int64_t count) {
  return HashLoop<uint16_t>(data, position, count);
}
QUARTET_SIMD_CLONES uint64_t Hash32(const unsigned char* data, uint64_t position, int64_t count) {
  return HashLoop<uint32_t>(data, position, count);
}
QUARTET_SIMD_CLONES uint64_t Hash64(const unsigned char* data, uint64_t position, int64_t count) {
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
