// The ranks of a service as a grid of replicas and shards, for hybrid sharding: a model is sharded over the ranks of
// one replica, which are close to each other, and replicated over the ranks with the same shard.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/comm/process_group.h"

namespace quartet {

// Rank = replica * shards + shard. Groups that have the same ranks are the same object: shard() is world() where there
// is one replica, replica() is world() where a shard has one rank; so volumes must not be added over them. As
// ProcessGroup, one thread at a time.
class Mesh {
 public:
  virtual ~Mesh() = default;
  virtual ProcessGroup& world() = 0;
  // The ranks of this rank's replica; its rank is this rank's shard.
  virtual ProcessGroup& shard() = 0;
  // The ranks that hold the same shard; its rank is this rank's replica.
  virtual ProcessGroup& replica() = 0;
};

// `world` describes the group of all ranks; the others take their options from it, and names that begin with its name.
// INVALID_ARGUMENT where `shard_size` does not divide the number of ranks. Collective over all ranks, except for dry
// groups.
absl::StatusOr<std::unique_ptr<Mesh>> MakeMesh(KeyValueStore* store, const ProcessGroupOptions& world, int shard_size);

}  // namespace quartet
