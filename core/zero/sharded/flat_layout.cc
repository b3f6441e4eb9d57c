#include "core/zero/sharded/flat_layout.h"

#include <algorithm>

#include "core/base/division.h"

namespace quartet {
namespace {

constexpr int64_t kAlignmentBytes = 256;

}  // namespace

FlatGroup MakeFlatGroup(const ParameterGroup& group, int64_t element_bytes, int shards, int replicas) {
  const int64_t alignment = kAlignmentBytes / element_bytes;
  FlatGroup flat;
  int64_t end = 0;
  for (const ParameterSpec& parameter : group.parameters) {
    flat.offsets.push_back(end);
    end = RoundUp(end + parameter.numel(), alignment);
  }
  flat.total = RoundUp(end, alignment * shards * replicas);
  flat.shard = flat.total / shards;
  return flat;
}

std::vector<FlatPiece> PiecesWithin(const ParameterGroup& group, const FlatGroup& flat, int64_t begin, int64_t count) {
  std::vector<FlatPiece> pieces;
  for (int p = 0; p < static_cast<int>(group.parameters.size()); ++p) {
    const int64_t first = std::max(begin, flat.offsets[p]);
    const int64_t last = std::min(begin + count, flat.offsets[p] + group.parameters[p].numel());
    if (first < last) pieces.push_back({p, first - flat.offsets[p], last - first, first - begin});
  }
  return pieces;
}

}  // namespace quartet
