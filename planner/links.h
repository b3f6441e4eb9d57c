// What the collectives of a plan send over the links of the cluster.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/plan.h"
#include "proto/run_config.pb.h"

namespace quartet {

// What one kind of group of a service's ranks sends in a PPO step, if each group is a ring in the order of its ranks.
struct LinkUse {
  std::string service;
  GroupTraffic group;
  // Over a link within a node, one rank's part; out of a node, one for each ring that has a member there. 0: nothing.
  double within_bytes = 0;
  double out_bytes = 0;
  // At cluster.intra_node_gbps and inter_node_gbps alone; none where the rate is not stated.
  std::optional<double> within_seconds;
  std::optional<double> out_seconds;

  // A ring is as fast as its slowest link. None where a rate that it needs is not stated.
  std::optional<double> seconds() const;
};

std::vector<LinkUse> LinksOf(const RunConfig& config, const Plan& plan);

// What the busiest node takes at cluster.inter_node_gbps while each rollout rank pulls `bytes` of new weights, evenly
// from all ranks of the policy trainer; 0 where nothing leaves a node, none where the rate is not stated.
std::optional<double> WeightSyncSeconds(const RunConfig& config, int64_t bytes);

}  // namespace quartet
