// Hashes (core/base/hash.h) as files and errors have them: 16 hexadecimal digits. Thread safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quartet {

std::string HashText(uint64_t hash);
// Nothing where the text is no such.
std::optional<uint64_t> ParseHash(std::string_view text);

}  // namespace quartet
