// A 64-bit hash that is the same on every machine and in every release. Not cryptographic.
#pragma once

#include <cstdint>
#include <string_view>

namespace quartet {

// Hashes are chained by passing one as the next one's seed; the lengths of the parts count.
uint64_t HashBytes(std::string_view bytes, uint64_t seed = 0);

}  // namespace quartet
