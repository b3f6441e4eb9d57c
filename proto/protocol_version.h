// The version of the wire protocol (proto/*.proto), which ServiceInfo.protocol_version tells.
#pragma once

#include <cstdint>

namespace quartet {

// Counts up with every change that a peer built before it would misunderstand.
inline constexpr int32_t kProtocolVersion = 6;

// The oldest version that this build still speaks. Peers work together where they have a version in common.
inline constexpr int32_t kMinProtocolVersion = 6;

}  // namespace quartet
