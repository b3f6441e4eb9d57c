// bf16, one number at a time: the upper half of a float.
#pragma once

#include <bit>
#include <cstdint>

namespace quartet {

inline float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// To the nearest, ties to even; of a NaN 0x7FC0.
inline uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return value != value ? 0x7FC0 : static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

}  // namespace quartet
