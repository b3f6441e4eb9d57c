#include "orchestrator/launch/launch_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/status_macros.h"
#include "core/config/placement.h"
#include "core/config/run_config.h"
#include "core/hardware/cores.h"
#include "core/service/process/launcher.h"

namespace quartet {
namespace {

// NUMA nodes that have cores.
std::vector<int> WithCores(const HostTopology& topology) {
  std::vector<int> nodes;
  for (size_t node = 0; node < topology.numa_cores.size(); ++node) {
    if (!topology.numa_cores[node].empty()) nodes.push_back(static_cast<int>(node));
  }
  return nodes;
}

// One on GPU `gpu` of `topology`.
void BindToGpu(const HostTopology& topology, int gpu, RankLaunch* rank) {
  if (gpu >= static_cast<int>(topology.gpu_numa.size())) return;
  const int node = topology.gpu_numa[gpu];
  if (node < 0 || node >= static_cast<int>(topology.numa_cores.size())) return;
  const auto begin = topology.gpu_numa.begin();
  const auto there = std::count(begin, topology.gpu_numa.end(), node);
  const auto before = std::count(begin, begin + gpu, node);
  rank->numa_node = node;
  rank->cores = PartOf(topology.numa_cores[node], static_cast<int>(before), static_cast<int>(there));
}

// One of `ranks` on its host's CPUs.
void BindToCpus(const HostTopology& topology, int ranks, RankLaunch* rank) {
  const std::vector<int> nodes = WithCores(topology);
  const auto count = static_cast<int>(nodes.size());
  if (count < 2 || ranks % count != 0) return;
  const int together = ranks / count;
  rank->numa_node = nodes[rank->local_rank / together];
  rank->cores = PartOf(topology.numa_cores[rank->numa_node], rank->local_rank % together, together);
}

}  // namespace

HostTopology TopologyOf(const ClusterConfig& cluster) {
  return EvenTopology(cluster.num_cpus_per_node(), cluster.num_numa_nodes(),
                      cluster.num_cpus_per_node() > 0 ? cluster.num_gpus_per_node() : 0);
}

absl::StatusOr<std::vector<RankLaunch>> MakeLaunchPlan(const RunConfig& config,
                                                       const std::vector<std::string>& services,
                                                       const HostTopology& topology, const std::string& programs_folder,
                                                       const std::vector<std::string>& arguments) {
  QUARTET_ASSIGN_OR_RETURN(const auto placed, PlaceRanks(config));
  const auto host_of = [&config](int node) {
    return node < config.cluster().node_names_size() ? config.cluster().node_names(node) : std::string();
  };
  std::vector<RankLaunch> plan;
  for (const std::string& service : services) {
    const std::vector<RankPlace>& places = placed.at(service);
    std::map<int, std::vector<std::string>> gpus_on;  // by node
    std::map<int, int> ranks_on;
    for (const RankPlace& place : places) {
      if (place.gpu >= 0) gpus_on[place.node].push_back(absl::StrCat(place.gpu));
      ++ranks_on[place.node];
    }
    std::map<int, int> begun_on;
    for (size_t r = 0; r < places.size(); ++r) {
      const auto [node, gpu] = places[r];
      RankLaunch& rank = plan.emplace_back();
      rank.service = service;
      rank.rank = static_cast<int>(r);
      rank.local_rank = begun_on[node]++;
      rank.node = node;
      rank.host = host_of(node);
      rank.gpu = gpu;
      gpu >= 0 ? BindToGpu(topology, gpu, &rank) : BindToCpus(topology, ranks_on[node], &rank);
      rank.command = {absl::StrCat(programs_folder, "/", service, "/", service)};
      rank.command.insert(rank.command.end(), arguments.begin(), arguments.end());
      auto& environment = rank.environment;
      environment["RANK"] = absl::StrCat(r);
      environment["WORLD_SIZE"] = absl::StrCat(places.size());
      environment["LOCAL_RANK"] = absl::StrCat(rank.local_rank);
      environment["LOCAL_WORLD_SIZE"] = absl::StrCat(ranks_on[node]);
      if (ranks_on.size() > 1 && !host_of(places[0].node).empty()) environment["MASTER_ADDR"] = host_of(places[0].node);
      if (gpu >= 0) {
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
        environment["CUDA_VISIBLE_DEVICES"] = absl::StrJoin(gpus_on[node], ",");
      }
      if (!rank.cores.empty()) environment[kOwnCores] = "1";
    }
  }
  return plan;
}

void WithinVisibleGpus(const std::string& visible, const std::vector<std::string>& addresses,
                       const HostTopology& topology, std::vector<RankLaunch>* plan) {
  const std::vector<std::string> names = absl::StrSplit(visible, ',');
  for (RankLaunch& rank : *plan) {
    if (rank.gpu < 0) continue;
    std::vector<std::string> own;
    for (const std::string& gpu :
         std::vector<std::string>(absl::StrSplit(rank.environment.at("CUDA_VISIBLE_DEVICES"), ','))) {
      const size_t i = std::stoul(gpu);
      own.push_back(i < names.size() ? names[i] : gpu);
    }
    rank.environment["CUDA_VISIBLE_DEVICES"] = absl::StrJoin(own, ",");
    rank.environment.erase("CUDA_DEVICE_ORDER");  // the names are of the order that is in use
    rank.environment.erase(kOwnCores);
    rank.cores.clear();
    rank.numa_node = -1;
    if (rank.gpu >= static_cast<int>(addresses.size()) || addresses[rank.gpu].empty()) continue;
    const auto begin = topology.gpu_addresses.begin();
    const auto found = std::find(begin, topology.gpu_addresses.end(), addresses[rank.gpu]);
    if (found == topology.gpu_addresses.end()) continue;
    BindToGpu(topology, static_cast<int>(found - begin), &rank);
    if (!rank.cores.empty()) rank.environment[kOwnCores] = "1";
  }
}

std::map<std::string, std::string> EnvironmentOf(const std::vector<RankLaunch>& plan, const std::string& service) {
  std::map<std::string, std::string> environment;
  std::vector<std::string> cores;
  bool all_bound = true;
  for (const RankLaunch& rank : plan) {
    if (rank.service != service) continue;
    all_bound = all_bound && !rank.cores.empty();
    cores.push_back(FormatCores(rank.cores));
    for (const char* name : {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"}) {
      const auto found = rank.environment.find(name);
      if (found != rank.environment.end()) environment.insert(*found);
    }
  }
  if (all_bound && !cores.empty()) environment[kRankCores] = absl::StrJoin(cores, ";");
  return environment;
}

std::string LaunchPlanAsJson(const std::vector<RankLaunch>& plan) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const RankLaunch& rank : plan) {
    nlohmann::json& entry = ranks.emplace_back();
    entry["service"] = rank.service;
    entry["rank"] = rank.rank;
    entry["node"] = rank.node;
    entry["host"] = rank.host;
    entry["gpus"] = rank.gpu < 0 ? nlohmann::json::array() : nlohmann::json::array({rank.gpu});
    entry["numa_node"] = rank.numa_node < 0 ? nlohmann::json() : nlohmann::json(rank.numa_node);
    entry["cores"] = FormatCores(rank.cores);
    entry["environment"] = rank.environment;
    entry["command"] = rank.command;
  }
  return ranks.dump(2);
}

}  // namespace quartet
