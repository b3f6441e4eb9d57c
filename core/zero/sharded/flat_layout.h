// Where each tensor of a group lies in the group's flat buffer, and which part of it a rank keeps. LibTorch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/parameter_layout.h"

namespace quartet {

// Counts and offsets are in elements.
struct FlatGroup {
  std::vector<int64_t> offsets;  // of each parameter, aligned to 256 bytes
  int64_t total = 0;             // with padding; shards * shard
  int64_t shard = 0;             // what one rank keeps: rank r the part from r * shard
};

// `element_bytes` of the compute type. A shard is a multiple of the alignment, and so is the equal share that each of
// `replicas` ranks owns of it. Offsets are the same at every world size; only the padding behind the last parameter
// differs.
FlatGroup MakeFlatGroup(const ParameterGroup& group, int64_t element_bytes, int shards, int replicas = 1);

// `count` elements of a parameter from its element `begin` lie at `offset` from the beginning of a window.
struct FlatPiece {
  int parameter;
  int64_t begin;
  int64_t count;
  int64_t offset;
};

// What lies in elements [begin, begin + count) of the buffer, padding left out, in order.
std::vector<FlatPiece> PiecesWithin(const ParameterGroup& group, const FlatGroup& flat, int64_t begin, int64_t count);

}  // namespace quartet
