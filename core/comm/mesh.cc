#include "core/comm/mesh.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace quartet {
namespace {

class OwningMesh : public Mesh {
 public:
  explicit OwningMesh(std::unique_ptr<ProcessGroup> world) : world_(std::move(world)) {}

  ProcessGroup& world() override { return *world_; }
  ProcessGroup& shard() override { return shard_ != nullptr ? *shard_ : *world_; }
  ProcessGroup& replica() override { return replica_ != nullptr ? *replica_ : *world_; }

  // Null where the world stands for it.
  std::unique_ptr<ProcessGroup> shard_, replica_;

 private:
  std::unique_ptr<ProcessGroup> world_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Mesh>> MakeMesh(KeyValueStore* store, const ProcessGroupOptions& world, int shard_size) {
  if (shard_size < 1 || world.size % shard_size != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("mesh ", world.name, ": a shard size of ", shard_size, " does not divide ", world.size, " ranks"));
  }
  const int replica_rank = world.rank / shard_size, shard_rank = world.rank % shard_size;
  const int replicas = world.size / shard_size;
  QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> group, MakeProcessGroup(store, world));
  auto mesh = std::make_unique<OwningMesh>(std::move(group));
  // `size` ranks, every `stride`-th from `first` on, of which this is number `rank`.
  const auto make = [&](int rank, int size, int first, int stride, const std::string& name) {
    ProcessGroupOptions part = world;
    part.rank = rank;
    part.size = size;
    part.rank_names.clear();
    for (int r = 0; r < size; ++r) part.rank_names.push_back(first + r * stride);
    part.name = absl::StrCat(world.name, "/", name);
    return MakeProcessGroup(store, part);
  };
  if (replicas > 1) {
    QUARTET_ASSIGN_OR_RETURN(mesh->shard_, make(shard_rank, shard_size, replica_rank * shard_size, 1,
                                                absl::StrCat("shards_of_replica_", replica_rank)));
  }
  if (shard_size > 1) {
    QUARTET_ASSIGN_OR_RETURN(mesh->replica_, make(replica_rank, replicas, shard_rank, shard_size,
                                                  absl::StrCat("replicas_of_shard_", shard_rank)));
  }
  return mesh;
}

}  // namespace quartet
