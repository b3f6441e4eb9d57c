// Which node and GPU each rank of each service is on. LibTorch-free.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/config/programs.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct RankPlace {
  int node = 0;
  int gpu = -1;  // of the node; -1: the rank is on CPUs
  friend bool operator==(const RankPlace&, const RankPlace&) = default;
};

// GPUs that a placement gives its service; 1 where it cannot be told, which the checks then find.
int PlacedGpus(const GpuPlacement& placement, const ClusterConfig& cluster);

// Of a service with num_gpus_per_node or, on CPUs, num_nodes: its ranks.
int RanksAskedFor(const ServicePlacement& service);

// The places of every service's ranks, by service, in the order of the ranks; of a configuration that has its defaults.
//
// A service has the GPUs that its entry of `placement` names, without one the first of the cluster. One that says
// num_gpus_per_node has free ones: as many on each of num_nodes nodes (Ray's STRICT_PACK within a node and
// STRICT_SPREAD over nodes). Those that need most of a node are placed first, each on the nodes that it leaves least
// of, and there on the GPUs with the least left. INVALID_ARGUMENT where there are not enough, which says what is free.
absl::StatusOr<std::map<std::string, std::vector<RankPlace>>> PlaceRanks(const RunConfig& config);

// What rollout.gpu_memory_utilization is by default where the rollout has its GPUs to itself: as vLLM's, whose engine
// has.
inline constexpr double kUtilizationOfOwnGpus = 0.9;
// Whether the rollout is on GPUs that no other service which `program` drives has a model on. Without a cluster all
// services on GPUs are taken to be on the same. Of a configuration whose placements are in order.
bool RolloutHasGpusAlone(Program program, const RunConfig& config);

// Of a PPO run, a sentence for each field whose groups of neighbouring ranks (rollout.tensor_parallel_size, shard_size
// of trainers) are not each on the GPUs of one node of the cluster, and for a rollout that sleeps for nobody.
std::vector<std::string> PlacementWarnings(const RunConfig& config);

// Whether the policy's and the critic's trainer compute one after the other: where they have a GPU of the cluster in
// common, and one is of several ranks, whose collectives would wait for the other's kernels; or where memory is held in
// turn (rollout.enable_sleep), on CPUs, too, where they have a host in common. Of a configuration that PlaceRanks
// places; false of others.
bool TrainersInTurn(const RunConfig& config);
// The same of any two of them and of the scorer for the reference, where it has a model for that.
bool ForwardsInTurn(const RunConfig& config);

}  // namespace quartet
