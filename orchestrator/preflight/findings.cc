#include "orchestrator/preflight/findings.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/config/placement.h"
#include "core/config/run_config.h"
#include "core/memory/cuda_context.h"
#include "core/service/ranks/addresses/nccl_environment.h"

namespace quartet {
namespace {

// Clocks apart by more make logs of several hosts hard to read, and certificates that are not valid yet.
constexpr double kMostSecondsApart = 1;
// Each connection, worker and file of a dataset takes one.
constexpr int64_t kOpenFiles = 1024;
// Of /dev/shm: what NCCL's rings of one host take, or the buffers of ranks on CPUs.
constexpr int64_t kSharedMemory = int64_t{512} << 20;
// Of a GPU, by programs that are there before the run; drivers take some hundred MiB themselves.
constexpr int64_t kGpuInUse = int64_t{1} << 30;
// Of what is stated, and of the best of its kind.
constexpr double kShareOfStated = 0.5, kShareOfBest = 1.0 / 3;

std::string Gibibytes(int64_t bytes) {
  constexpr double kGibi = 1 << 30;
  return absl::StrFormat("%.3g GiB", static_cast<double>(bytes) / kGibi);
}

class Problems {
 public:
  void Fatal(const std::string& where, const std::string& what, const std::string& remedy) {
    fatal_.push_back({.fatal = true, .where = where, .what = what, .remedy = remedy});
  }
  void Warn(const std::string& where, const std::string& what, const std::string& remedy) {
    others_.push_back({.fatal = false, .where = where, .what = what, .remedy = remedy});
  }
  std::vector<Finding> All() {
    fatal_.insert(fatal_.end(), others_.begin(), others_.end());
    return std::move(fatal_);
  }

 private:
  std::vector<Finding> fatal_, others_;
};

void CheckHost(const RunConfig& config, const NodeFacts& own, const NodeFacts& node, int64_t checkpoint_bytes,
               Problems* problems) {
  const std::string& host = node.host();
  if (!node.sees_run_dir()) {
    problems->Fatal(host, absl::StrCat("does not see what ", own.host(), " has written to run_dir, ", config.run_dir()),
                    "give a run_dir on a file system that all hosts share");
  }
  if (node.version() != own.version()) {
    problems->Fatal(host, absl::StrCat("has ", node.version(), ", and ", own.host(), " has ", own.version()),
                    "start all from one bundle");
  }
  if (node.open_files() >= 0 && node.open_files() < kOpenFiles) {
    problems->Warn(host, absl::StrCat("a process may have ", node.open_files(), " files open"),
                   absl::StrCat("raise it (ulimit -n) to ", kOpenFiles, " or more"));
  }
  if (node.shared_memory_free_bytes() < 0) {
    problems->Warn(host, "has no /dev/shm", "mount one; collectives of one host go through it");
  } else if (node.shared_memory_free_bytes() < kSharedMemory) {
    problems->Warn(host, absl::StrCat("/dev/shm has ", Gibibytes(node.shared_memory_free_bytes()), " free"),
                   "give it more (a container's is 64 MiB unless --shm-size says more)");
  }
  if (node.disk_free_bytes() >= 0 && node.disk_free_bytes() < checkpoint_bytes) {
    problems->Warn(host, absl::StrCat("where run_dir is, ", Gibibytes(node.disk_free_bytes()), " are free"),
                   absl::StrCat("a checkpoint takes about ", Gibibytes(checkpoint_bytes), "; make room"));
  }
  if (config.cluster().host_memory_bytes() > node.memory_bytes()) {
    problems->Warn(host, absl::StrCat("has ", Gibibytes(node.memory_bytes()), " of memory"),
                   absl::StrCat("the plan counts on cluster.host_memory_bytes, ",
                                Gibibytes(config.cluster().host_memory_bytes())));
  }
}

// By the run's placement, itself among them.
int64_t RanksOnTheGpuOf(const RunConfig& config, const std::string& service, int rank) {
  const auto places = PlaceRanks(config);
  if (!places.ok() || !places->contains(service)) return 1;
  const std::vector<RankPlace>& own = places->at(service);
  if (rank >= static_cast<int>(own.size())) return 1;
  int64_t ranks = 0;
  for (const auto& [name, of_service] : *places) ranks += std::count(of_service.begin(), of_service.end(), own[rank]);
  return ranks;
}

void CheckGpu(const RunConfig& config, const std::string& service, const RankCheck& rank, Problems* problems) {
  const NodeFacts& node = rank.node();
  if (node.gpu_memory_bytes() == 0) return;
  const std::string where = absl::StrCat(node.host(), ", rank ", rank.rank(), " of the ", service);
  if (config.cluster().gpu_memory_bytes() > node.gpu_memory_bytes()) {
    problems->Warn(where, absl::StrCat("its GPU has ", Gibibytes(node.gpu_memory_bytes())),
                   absl::StrCat("the plan counts on ", Gibibytes(config.cluster().gpu_memory_bytes())));
  }
  const int64_t others = RanksOnTheGpuOf(config, service, rank.rank()) - 1;
  if (node.gpu_memory_used_bytes() > kGpuInUse + others * kCudaContextBytes) {
    problems->Warn(where, absl::StrCat("of its GPU ", Gibibytes(node.gpu_memory_used_bytes()), " are in use already"),
                   "see which program has it (nvidia-smi), and end it");
  }
}

void CheckInterface(const std::string& service, const RankCheck& rank, Problems* problems) {
  const NodeFacts& node = rank.node();
  if (node.interface().empty() || NcclTakes(node.nccl_socket_ifname(), node.interface())) return;
  problems->Warn(absl::StrCat(node.host(), ", rank ", rank.rank(), " of the ", service),
                 absl::StrCat("its collectives are not on ", node.interface(), ", the interface of its address ",
                              rank.endpoint(), ": ", kNcclInterface, " is \"", node.nccl_socket_ifname(), "\""),
                 "unset it, unless NCCL has a network of its own");
}

// Values that all hosts should have alike, with the hosts of each.
void CheckAlike(const std::vector<const NodeFacts*>& hosts, const std::string& what,
                const std::string& (NodeFacts::*value)() const, const std::string& remedy, bool fatal,
                Problems* problems) {
  std::map<std::string, std::vector<std::string>> by_value;
  for (const NodeFacts* node : hosts) {
    if (!(node->*value)().empty()) by_value[(node->*value)()].push_back(node->host());
  }
  if (by_value.size() < 2) return;
  std::vector<std::string> said;
  for (const auto& [one, names] : by_value) said.push_back(absl::StrCat(one, " on ", absl::StrJoin(names, ", ")));
  const std::string text = absl::StrCat(what, " differ: ", absl::StrJoin(said, "; "));
  fatal ? problems->Fatal("hosts", text, remedy) : problems->Warn("hosts", text, remedy);
}

void CheckLinks(const RunConfig& config, std::vector<LinkRate> links, Problems* problems) {
  // Within a host there is no link.
  std::erase_if(links, [](const LinkRate& link) { return link.from_host == link.to_host; });
  const double stated = config.cluster().inter_node_gbps() * 1e9 / 8;
  std::map<std::string, double> best;
  for (const LinkRate& link : links) best[link.kind] = std::max(best[link.kind], link.bytes_per_second);
  std::vector<const LinkRate*> slow;
  std::set<std::string> well, suspects;
  for (const LinkRate& link : links) {
    const bool is_slow = (stated > 0 && link.bytes_per_second < kShareOfStated * stated) ||
                         link.bytes_per_second < kShareOfBest * best[link.kind];
    if (is_slow) slow.push_back(&link);
    for (const std::string& host : {link.from_host, link.to_host}) (is_slow ? suspects : well).insert(host);
  }
  if (slow.empty()) return;
  for (const std::string& host : well) suspects.erase(host);
  std::erase_if(suspects, [&](const std::string& host) {
    return std::any_of(slow.begin(), slow.end(),
                       [&](const LinkRate* link) { return link->from_host != host && link->to_host != host; });
  });
  const std::string expected = stated > 0 ? absl::StrCat("cluster.inter_node_gbps says ", Gigabits(stated))
                                          : "other links carry three times as much";
  std::vector<std::string> rates;
  for (const LinkRate* link : slow) {
    rates.push_back(absl::StrCat(link->kind, " from ", link->from_host, " to ", link->to_host, ": ",
                                 Gigabits(link->bytes_per_second), " (the best: ", Gigabits(best[link->kind]), ")"));
  }
  problems->Warn(suspects.size() == 1 ? *suspects.begin() : "links between hosts",
                 absl::StrCat(suspects.size() == 1 ? "its link is slow. " : "slow. ", absl::StrJoin(rates, ", ")),
                 absl::StrCat(expected,
                              ": look at its cable, its port, which interface is used (of services.NAME.listen, or "
                              "NCCL_SOCKET_IFNAME) and who else uses it"));
}

// The collectives of services that are on one host.
void CheckWithinHosts(const RunConfig& config, const PreflightFacts& facts, Problems* problems) {
  const double stated = config.cluster().intra_node_gbps() * 1e9 / 8;
  for (const auto& [service, reply] : facts.services) {
    const double rate = reply.all_gather_bytes_per_second();
    if (rate == 0 || rate >= kShareOfStated * stated) continue;
    const std::string& host = reply.ranks(0).node().host();
    const bool one_host = std::all_of(reply.ranks().begin(), reply.ranks().end(),
                                      [&](const RankCheck& rank) { return rank.node().host() == host; });
    if (!one_host) continue;
    problems->Warn(host,
                   absl::StrCat("the collectives of the ", service, " within it carry ", Gigabits(rate),
                                ", and cluster.intra_node_gbps says ", Gigabits(stated)),
                   "see how its GPUs are linked (nvidia-smi topo -m), or state what they have");
  }
}

}  // namespace

std::string Gigabits(double bytes_per_second) { return absl::StrFormat("%.3g Gb/s", bytes_per_second * 8e-9); }

std::string Describe(const Finding& finding) {
  return absl::StrCat(finding.where, ": ", finding.what, "; ", finding.remedy);
}

std::vector<const NodeFacts*> HostsOf(const PreflightFacts& facts) {
  std::vector<const NodeFacts*> hosts;
  std::set<std::string> seen;
  for (const auto& [service, reply] : facts.services) {
    for (const RankCheck& rank : reply.ranks()) {
      if (seen.insert(rank.node().host()).second) hosts.push_back(&rank.node());
    }
  }
  return hosts;
}

std::vector<Finding> FindProblems(const RunConfig& config, const PreflightFacts& facts) {
  Problems problems;
  const std::vector<const NodeFacts*> hosts = HostsOf(facts);
  for (const NodeFacts* node : hosts) {
    CheckHost(config, facts.own, *node, facts.checkpoint_bytes, &problems);
    const auto ahead = facts.clock_ahead.find(node->host());
    if (ahead != facts.clock_ahead.end() && std::abs(ahead->second) > kMostSecondsApart) {
      problems.Warn(node->host(),
                    absl::StrFormat("its clock is %.1f s %s that of %s", std::abs(ahead->second),
                                    ahead->second > 0 ? "ahead of" : "behind", facts.own.host()),
                    "set it (chrony, ntp): certificates that were just made may not be valid there");
    }
  }
  for (const auto& [service, reply] : facts.services) {
    for (const RankCheck& rank : reply.ranks()) {
      CheckGpu(config, service, rank, &problems);
      CheckInterface(service, rank, &problems);
    }
  }
  CheckAlike(hosts, "what multiplies bf16 matrices on CPUs", &NodeFacts::cpu_kernels,
             "take hosts of one kind, or start all services with QUARTET_CPU_KERNELS=fp32 in their environment",
             /*fatal=*/true, &problems);
  CheckAlike(hosts, "NVIDIA's drivers", &NodeFacts::gpu_driver, "install one version on all hosts", /*fatal=*/false,
             &problems);
  CheckWithinHosts(config, facts, &problems);
  CheckLinks(config, facts.links, &problems);
  return problems.All();
}

}  // namespace quartet
