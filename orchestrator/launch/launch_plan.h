// What is started where: each rank of each service, for whatever starts it. Nothing of it is decided by who does.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/hardware/topology.h"
#include "proto/run_config.pb.h"

namespace quartet {

struct RankLaunch {
  std::string service;
  int rank = 0;
  int local_rank = 0;  // among the service's ranks on its node
  int node = 0;
  std::string host;        // the node's name; "": not known
  int gpu = -1;            // of the node; -1: the rank is on CPUs
  int numa_node = -1;      // -1: not known, or it is on several
  std::vector<int> cores;  // that it runs on; empty: all that there are
  std::map<std::string, std::string> environment;
  std::vector<std::string> command;
};

// The ranks of `services`, in their order. `config` is resolved; `topology` is that of each node. Programs are
// <programs_folder>/<service>/<service>, with `arguments`.
//
// A rank on a GPU has an equal part of the cores of that GPU's NUMA node, as all GPUs there have, whether they are used
// or not. Ranks on CPUs have a part of a NUMA node where the host has several and they divide evenly; else all cores.
absl::StatusOr<std::vector<RankLaunch>> MakeLaunchPlan(const RunConfig& config,
                                                       const std::vector<std::string>& services,
                                                       const HostTopology& topology, const std::string& programs_folder,
                                                       const std::vector<std::string>& arguments);

// The topology of a node of `cluster`, as far as it says.
HostTopology TopologyOf(const ClusterConfig& cluster);

// Where CUDA_VISIBLE_DEVICES has a value already, the plan's GPU i is the i-th that it names, and the ranks' variables
// say so. Where that is in `topology` its PCI address tells, in `addresses`, as VisibleGpus
// (core/hardware/cuda_driver.h) has them: a rank has cores beside it, and none of its own where it is not told.
void WithinVisibleGpus(const std::string& visible, const std::vector<std::string>& addresses,
                       const HostTopology& topology, std::vector<RankLaunch>* plan);

// For programs: an array of {"service", "rank", "node", "host", "gpus", "cores", "numa_node", "environment",
// "command"}, "gpus" and "numa_node" of the node, "cores" as "0-3,8".
std::string LaunchPlanAsJson(const std::vector<RankLaunch>& plan);

// The environment of a service of which all ranks are on this host, for its own launcher of ranks
// (core/service/process/launcher.h). Where the place of one GPU is not known, no rank is bound to cores.
std::map<std::string, std::string> EnvironmentOf(const std::vector<RankLaunch>& plan, const std::string& service);

}  // namespace quartet
