// The kinds of collectives.
#pragma once

namespace quartet {

enum class CollectiveKind { kAllGather, kReduceScatter, kAllReduce, kBarrier };
inline constexpr int kCollectiveKinds = 4;

// "all-gather", "reduce-scatter", ...
constexpr const char* CollectiveName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  return "collective";
}

}  // namespace quartet
