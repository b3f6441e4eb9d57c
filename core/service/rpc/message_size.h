// How large one message of a stream may be.
#pragma once

namespace quartet {

// gRPC's default, 4 MiB, is less than one answer of 130,000 tokens with all that a trainer is told of it. This has room
// for 8 million.
inline constexpr int kMaxMessageBytes = 256 << 20;

}  // namespace quartet
