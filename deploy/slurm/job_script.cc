#include "deploy/slurm/job_script.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/config/placement.h"
#include "core/config/services.h"
#include "core/hardware/topology.h"
#include "core/network/address.h"
#include "core/service/process/launcher.h"
#include "core/terminal/continue_command.h"
#include "deploy/slurm/script_parts.h"
#include "orchestrator/launch/launch_plan.h"
#include "orchestrator/launch/requested_services.h"

namespace quartet {
namespace {

using Strings = std::vector<std::string>;

// Services that share nodes, which Slurm finds together.
struct Component {
  Strings services;
  std::vector<int> nodes;             // of the plan, ascending
  std::map<int, std::set<int>> gpus;  // that are used, by node
  std::map<int, int> ranks;           // how many there are, by node
};

std::vector<Component> Components(const Strings& services,
                                  const std::map<std::string, std::vector<RankPlace>>& placed) {
  std::vector<Component> components;
  for (const std::string& service : services) {
    Component own = {.services = {service}};
    std::set<int> nodes;
    for (const RankPlace& place : placed.at(service)) {
      nodes.insert(place.node);
      ++own.ranks[place.node];
      if (place.gpu >= 0) own.gpus[place.node].insert(place.gpu);
    }
    std::vector<Component> apart;
    for (Component& other : components) {
      if (std::none_of(other.nodes.begin(), other.nodes.end(), [&](int node) { return nodes.count(node) > 0; })) {
        apart.push_back(std::move(other));
        continue;
      }
      own.services.insert(own.services.begin(), other.services.begin(), other.services.end());
      nodes.insert(other.nodes.begin(), other.nodes.end());
      for (const auto& [node, gpus] : other.gpus) own.gpus[node].insert(gpus.begin(), gpus.end());
      for (const auto& [node, ranks] : other.ranks) own.ranks[node] += ranks;
    }
    own.nodes.assign(nodes.begin(), nodes.end());
    apart.push_back(std::move(own));
    components = std::move(apart);
  }
  std::sort(components.begin(), components.end(),
            [](const Component& a, const Component& b) { return a.nodes < b.nodes; });
  return components;
}

int GpusPerNode(const Component& component) {
  size_t most = 0;
  for (const auto& [node, gpus] : component.gpus) most = std::max(most, gpus.size());
  return static_cast<int>(most);
}

// Whether no other job can be on its nodes: where it has all of their GPUs, or is on CPUs.
bool HasWholeNodes(const Component& component, const ClusterConfig& cluster) {
  const int gpus = GpusPerNode(component);
  return gpus == 0 || gpus >= cluster.num_gpus_per_node();
}

// What one component asks sbatch for.
std::string Request(const Component& component, const ClusterConfig& cluster) {
  const int gpus = GpusPerNode(component);
  std::string request = absl::StrCat("--nodes=", component.nodes.size(), " --ntasks-per-node=1");
  if (gpus > 0) absl::StrAppend(&request, " --gres=gpu:", gpus);
  if (HasWholeNodes(component, cluster)) return request + " --exclusive --mem=0";
  const int all = cluster.num_gpus_per_node();
  if (cluster.num_cpus_per_node() >= all) {
    absl::StrAppend(&request, " --cpus-per-gpu=", cluster.num_cpus_per_node() / all);
  } else {
    // Else Slurm gives one core, on which no step of several ranks starts. One for each, and for the orchestrator.
    int most = 0;
    for (const auto& [node, ranks] : component.ranks) most = std::max(most, ranks);
    absl::StrAppend(&request, " --cpus-per-task=", most + 1);
  }
  if (cluster.host_memory_bytes() > 0)
    absl::StrAppend(&request, " --mem=", (cluster.host_memory_bytes() >> 20) * gpus / all, "M");
  return request;
}

// What the step of a service is given; `index` is that of its component, of which it is on `nodes`.
struct Step {
  int index = 0;
  std::vector<size_t> hosts;  // among its component's
  int ranks_per_node = 0;
  std::string node_gpus;   // kNodeGpus
  std::string rank_cores;  // kRankCores
};

absl::StatusOr<Step> StepOf(const std::string& service, const Component& component,
                            const std::vector<RankPlace>& places, const std::vector<RankLaunch>& plan,
                            bool whole_nodes) {
  Step step;
  std::map<int, int> ranks_on;
  std::map<int, Strings> gpus_on;  // as positions among those that the component has
  for (const RankPlace& place : places) {
    ++ranks_on[place.node];
    if (place.gpu < 0) continue;
    const std::set<int>& gpus = component.gpus.at(place.node);
    gpus_on[place.node].push_back(absl::StrCat(std::distance(gpus.begin(), gpus.find(place.gpu))));
  }
  step.ranks_per_node = ranks_on.begin()->second;
  for (const auto& [node, ranks] : ranks_on) {
    if (ranks != step.ranks_per_node) {
      return absl::InvalidArgumentError(absl::StrCat(
          "services.", service, ".ranks is ", places.size(), " on ", ranks_on.size(),
          " nodes: a step of Slurm has as many ranks on each of its nodes; give a multiple of them, or num_nodes"));
    }
    step.hosts.push_back(std::find(component.nodes.begin(), component.nodes.end(), node) - component.nodes.begin());
  }
  step.node_gpus = absl::StrJoin(
      gpus_on, ";", [](std::string* out, const auto& of) { absl::StrAppend(out, absl::StrJoin(of.second, ",")); });
  Strings cores;
  for (const RankLaunch& rank : plan) {
    if (rank.service == service && !rank.cores.empty()) cores.push_back(FormatCores(rank.cores));
  }
  if (whole_nodes && cores.size() == places.size()) step.rank_cores = absl::StrJoin(cores, ";");
  return step;
}

// In an #SBATCH line.
absl::Status CheckOption(const std::string& flag, const std::string& option) {
  if (absl::StartsWith(option, "--") && !absl::StrContains(option, '\n')) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, "=", option, " is no option of sbatch; give one such as --partition=gpu"));
}

// The port that the user has chosen for the service; 0: none.
absl::StatusOr<int> PortOf(const RunConfig& config, const ValueOrigins& origins, const std::string& service) {
  const std::string field = absl::StrCat("services.", service, ".listen");
  if (origins.count(field) == 0) return 0;
  const std::string& listen = PlacementOf(config, service).listen();
  QUARTET_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(listen));
  if (address.host == "0.0.0.0" || IsLoopback(address.host)) return address.port;
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", listen,
                                                 ", but it is Slurm that chooses the host; give 0.0.0.0:", address.port,
                                                 ", or leave it out"));
}

}  // namespace

absl::StatusOr<std::string> SlurmJobScript(const RunConfig& config, const ValueOrigins& origins,
                                           const std::string& programs_folder, const SlurmOptions& options) {
  for (const std::string& path : {config.run_dir(), programs_folder}) {
    if (path.find_first_of("\"\\%\n") == std::string::npos) continue;
    return absl::InvalidArgumentError(absl::StrCat("a path for Slurm has none of \", \\, % and line ends: ", path));
  }
  for (const std::string& option : options.sbatch) QUARTET_RETURN_IF_ERROR(CheckOption("sbatch", option));
  for (const std::string& option : options.orchestrator_sbatch) {
    QUARTET_RETURN_IF_ERROR(CheckOption("orchestrator_sbatch", option));
  }
  const Strings services = ServicesOf(options.program, config);
  QUARTET_ASSIGN_OR_RETURN(const auto placed, PlaceRanks(config));
  QUARTET_ASSIGN_OR_RETURN(const std::vector<RankLaunch> plan,
                           MakeLaunchPlan(config, services, TopologyOf(config.cluster()), programs_folder, {}));
  const std::vector<Component> components = Components(services, placed);
  const bool apart = !options.orchestrator_sbatch.empty();
  const size_t count = components.size() + (apart ? 1 : 0);
  const auto of_component = [count](size_t index) { return count > 1 ? absl::StrCat(" --het-group=", index) : ""; };
  const std::string run_dir = ShellWord(config.run_dir());
  const std::string script_path = ShellWord(absl::StrCat(config.run_dir(), "/", kSlurmScript));

  // 1. What Slurm is asked for.
  std::string text =
      absl::StrCat("#!/bin/bash\n# The run in ", config.run_dir(),
                   ", written by its launcher. It goes on after its newest checkpoint", " by\n#   sbatch ", script_path,
                   "\n#SBATCH --job-name=quartet --requeue --open-mode=append --output=\"", config.run_dir(), "/",
                   kSlurmLog, "\"\n");
  for (size_t index = 0; index < components.size(); ++index) {
    if (index > 0) absl::StrAppend(&text, "#SBATCH hetjob\n");
    absl::StrAppend(&text, "# ", absl::StrJoin(components[index].services, ", "), ": nodes ",
                    absl::StrJoin(components[index].nodes, ", "), " of the plan\n#SBATCH ",
                    Request(components[index], config.cluster()), "\n");
    for (const std::string& option : options.sbatch) absl::StrAppend(&text, "#SBATCH ", option, "\n");
  }
  if (apart) {
    absl::StrAppend(&text, "#SBATCH hetjob\n# the orchestrator\n#SBATCH --nodes=1 --ntasks=1\n");
    for (const std::string& option : options.orchestrator_sbatch) absl::StrAppend(&text, "#SBATCH ", option, "\n");
  }

  // 2. Which nodes it got, and where on them services listen.
  const std::string programs = ShellWord(programs_folder);
  absl::StrAppend(&text, "run_dir=", run_dir, "\nprograms=", programs, "\nmax_restarts=", options.max_restarts,
                  "\ncheck=", options.check, "\nprogram=", RunProgramName(options.program), "\n", kBegin);
  for (size_t index = 0; index < components.size(); ++index) {
    absl::StrAppend(&text, "hosts", index, "=($(scontrol show hostnames \"$SLURM_JOB_NODELIST",
                    count > 1 ? absl::StrCat("_HET_GROUP_", index) : "", "\"))\n");
  }
  absl::StrAppend(&text, "\non_orchestrator() {  # NAME PROGRAM ARGUMENTS...\n  ", kServiceRequests,
                  "=\"$requests\" exec srun",
                  apart ? of_component(count - 1) : absl::StrCat(of_component(0), " --nodelist=\"${hosts0[0]}\""),
                  " --nodes=1 --ntasks=1 --overlap --cpu-bind=none --gres=none \\\n",
                  "    --job-name=\"$1\" \"${@:2}\"\n}\n", kEars);
  absl::StrAppend(&text, "config=$run_dir/", kClusterConfig,
                  "\nall_nodes=", count > 1 ? absl::StrCat("--het-group=0-", count - 1) : "", kClear);
  const bool own_tls = config.tls().ca_file().empty();
  if (own_tls) absl::StrAppend(&text, "tls=$run_dir/launch/tls", kTls);
  std::map<std::string, Step> steps;
  for (size_t index = 0; index < components.size(); ++index) {
    for (const std::string& service : components[index].services) {
      QUARTET_ASSIGN_OR_RETURN(steps[service], StepOf(service, components[index], placed.at(service), plan,
                                                      HasWholeNodes(components[index], config.cluster())));
      steps[service].index = static_cast<int>(index);
    }
  }
  absl::StrAppend(&text, "port=$((20000 + SLURM_JOB_ID % 2500 * 4))\nwhere=(\n");
  for (size_t i = 0; i < services.size(); ++i) {
    const Step& step = steps.at(services[i]);
    QUARTET_ASSIGN_OR_RETURN(const int port, PortOf(config, origins, services[i]));
    absl::StrAppend(&text, "  \"--set=services.", services[i], ".listen=${hosts", step.index, "[", step.hosts.front(),
                    "]}:", port > 0 ? absl::StrCat(port) : absl::StrCat("$((port + ", i, "))"), "\"\n");
  }
  // A host that is cut off is not told that the job has ended.
  constexpr char kTimeout[] = "services.orchestrator_timeout_seconds";
  if (origins.count(kTimeout) == 0) absl::StrAppend(&text, "  --set=", kTimeout, "=300\n");
  if (own_tls) {
    for (const char* file : {"ca_file=$tls/cert.pem", "cert_file=$tls/cert.pem", "key_file=$tls/key.pem"}) {
      absl::StrAppend(&text, "  \"--set=tls.", file, "\"\n");
    }
  }

  // 3. The programs.
  absl::StrAppend(&text, ")\nservices=(", absl::StrJoin(services, " "),
                  ")\nmkdir -p \"$run_dir/logs\"\ndeclare -A steps\n", kRequests);
  for (const std::string& service : services) {
    const Step& step = steps.at(service);
    const std::string hosts = absl::StrJoin(step.hosts, ",", [&](std::string* out, size_t host) {
      absl::StrAppend(out, "${hosts", step.index, "[", host, "]}");
    });
    absl::StrAppend(&text, "\nstart_", service, "() {  # PROGRAMS ARGUMENTS...\n  ");
    if (!step.node_gpus.empty()) absl::StrAppend(&text, kNodeGpus, "='", step.node_gpus, "' ");
    if (!step.rank_cores.empty()) absl::StrAppend(&text, kRankCores, "='", step.rank_cores, "' ");
    absl::StrAppend(&text, "srun", of_component(step.index), " --nodelist=\"", hosts, "\" --nodes=", step.hosts.size(),
                    " --ntasks=", step.hosts.size() * step.ranks_per_node, " --ntasks-per-node=", step.ranks_per_node,
                    " \\\n    --overlap --cpu-bind=none --kill-on-bad-exit=1 --job-name=", service,
                    " --open-mode=append --output=\"$run_dir/logs/", service, ".log\" \\\n    \"$1/", service, "/",
                    service, "\" --config=\"$config\" \"${where[@]}\" \"${@:2}\" &\n  steps[", service, "]=$!\n}\n");
  }
  absl::StrAppend(&text, kEnd);
  return text;
}

}  // namespace quartet
