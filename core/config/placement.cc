#include "core/config/placement.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/config/conditions.h"
#include "core/config/services.h"

namespace quartet {
namespace {

using Places = std::vector<RankPlace>;

// Of shares that are sums of fractions.
constexpr double kRounding = 1e-6;

bool OnCuda(const RunConfig& c, const std::string& service) { return PlacementOf(c, service).device() == "cuda"; }

const GpuPlacement* EntryOf(const RunConfig& c, const std::string& service) {
  for (const GpuPlacement& entry : c.placement()) {
    if (entry.service() == service) return &entry;
  }
  return nullptr;
}

double ShareOf(const ServicePlacement& s) { return s.has_gpu_share() ? s.gpu_share() : 1; }

// What is free of the cluster's GPUs.
class FreeGpus {
 public:
  FreeGpus(int nodes, int gpus) : free_(nodes, std::vector<double>(gpus, 1.0)) {}

  void Take(const Places& places, double share) {
    for (const RankPlace& place : places) {
      double& left = free_[place.node][place.gpu];
      left = std::max(0.0, left - share);
    }
  }

  // GPUs of a node that have room for `share`, those with the least left first.
  std::vector<int> WithRoom(int node, double share) const {
    std::vector<int> gpus;
    for (int gpu = 0; gpu < static_cast<int>(free_[node].size()); ++gpu) {
      if (free_[node][gpu] >= share - kRounding) gpus.push_back(gpu);
    }
    std::stable_sort(gpus.begin(), gpus.end(), [&](int a, int b) { return free_[node][a] < free_[node][b]; });
    return gpus;
  }

  double Sum(int node) const {
    double sum = 0;
    for (const double left : free_[node]) sum += left;
    return sum;
  }

  int nodes() const { return static_cast<int>(free_.size()); }

  // "node 0: 4, node 1: 8", of those with room for `share`.
  std::string Describe(double share) const {
    constexpr int kSaid = 16;
    std::string text;
    for (int node = 0; node < std::min(nodes(), kSaid); ++node) {
      absl::StrAppend(&text, node == 0 ? "" : ", ", "node ", node, ": ", WithRoom(node, share).size());
    }
    return nodes() > kSaid ? text + ", ..." : text;
  }

 private:
  std::vector<std::vector<double>> free_;  // by node and GPU, from 0 to 1
};

// Of a service whose GPUs are named, or are the first ones.
Places NamedPlaces(const RunConfig& c, const std::string& service) {
  const GpuPlacement* const entry = EntryOf(c, service);
  const bool some_nodes = entry != nullptr && !entry->nodes().empty();
  const bool some_gpus = entry != nullptr && !entry->gpus().empty();
  const int ranks = PlacementOf(c, service).ranks();
  const int all = c.has_cluster() ? c.cluster().num_gpus_per_node() : ranks;
  const int gpus = std::max(1, some_gpus ? entry->gpus_size() : all);
  Places places;
  for (int rank = 0; rank < ranks; ++rank) {
    const int node = rank / gpus, gpu = rank % gpus;
    places.push_back({.node = some_nodes ? entry->nodes(node) : node, .gpu = some_gpus ? entry->gpus(gpu) : gpu});
  }
  return places;
}

// Of one on CPUs: as evenly as it goes over its nodes, those with the fewest ranks on CPUs, neighbours together.
Places CpuPlaces(const ServicePlacement& s, std::vector<int>* ranks_on) {
  std::vector<int> nodes(ranks_on->size());
  for (size_t node = 0; node < nodes.size(); ++node) nodes[node] = static_cast<int>(node);
  if (s.has_num_nodes()) {
    std::stable_sort(nodes.begin(), nodes.end(), [&](int a, int b) { return (*ranks_on)[a] < (*ranks_on)[b]; });
    nodes.resize(std::min<size_t>(nodes.size(), s.num_nodes()));
    std::sort(nodes.begin(), nodes.end());
  }
  Places places;
  for (int64_t rank = 0; rank < s.ranks(); ++rank) {
    const int node = nodes[rank * static_cast<int64_t>(nodes.size()) / s.ranks()];
    places.push_back({.node = node});
    ++(*ranks_on)[node];
  }
  return places;
}

// Of one that asks for GPUs; takes them.
absl::StatusOr<Places> FreePlaces(const std::string& service, const ServicePlacement& s, FreeGpus* free) {
  const int wanted_nodes = std::max(1, s.num_nodes());
  const auto wanted_gpus = static_cast<size_t>(s.num_gpus_per_node());
  const double share = ShareOf(s);
  std::vector<int> nodes;
  for (int node = 0; node < free->nodes(); ++node) {
    if (free->WithRoom(node, share).size() >= wanted_gpus) nodes.push_back(node);
  }
  if (static_cast<int>(nodes.size()) < wanted_nodes) {
    return Bad(
        absl::StrCat("services.", service, ".num_gpus_per_node"), absl::StrCat(s.num_gpus_per_node()),
        absl::StrCat("it wants ", wanted_nodes, wanted_nodes == 1 ? " node" : " nodes",
                     " (num_nodes) with so many GPUs free", share < 1 ? absl::StrCat(" for a share of ", share) : "",
                     ", and there ", nodes.size() == 1 ? "is " : "are ", nodes.size(), ": free for it are ",
                     free->Describe(share),
                     ". Ask for fewer, let services share GPUs (gpu_share), or enlarge the cluster"));
  }
  std::stable_sort(nodes.begin(), nodes.end(), [&](int a, int b) { return free->Sum(a) < free->Sum(b); });
  nodes.resize(wanted_nodes);
  std::sort(nodes.begin(), nodes.end());
  Places places;
  for (const int node : nodes) {
    std::vector<int> gpus = free->WithRoom(node, share);
    gpus.resize(wanted_gpus);
    std::sort(gpus.begin(), gpus.end());
    for (const int gpu : gpus) places.push_back({.node = node, .gpu = gpu});
  }
  free->Take(places, share);
  return places;
}

}  // namespace

int PlacedGpus(const GpuPlacement& p, const ClusterConfig& cluster) {
  const int64_t nodes = p.nodes().empty() ? cluster.num_nodes() : p.nodes_size();
  const int64_t gpus = p.gpus().empty() ? cluster.num_gpus_per_node() : p.gpus_size();
  return nodes > 0 && gpus > 0 && nodes * gpus <= kMaxRanks ? static_cast<int>(nodes * gpus) : 1;
}

// Those that depend on other fields, in the order of proto/run_config.proto.
int RanksAskedFor(const ServicePlacement& s) {
  const int64_t ranks = int64_t{std::max(1, s.num_nodes())} * std::max(1, s.num_gpus_per_node());
  return ranks <= kMaxRanks ? static_cast<int>(ranks) : 1;
}

absl::StatusOr<std::map<std::string, Places>> PlaceRanks(const RunConfig& c) {
  const int nodes = std::max(1, c.cluster().num_nodes());
  std::map<std::string, Places> placed;
  std::vector<int> ranks_on(nodes, 0);
  std::vector<std::string> asking;
  int gpus = std::max(1, c.cluster().num_gpus_per_node());
  for (const std::string& service : kServiceNames) {
    const ServicePlacement& s = PlacementOf(c, service);
    if (!OnCuda(c, service)) {
      placed[service] = CpuPlaces(s, &ranks_on);
    } else if (s.has_num_gpus_per_node()) {
      asking.push_back(service);
    } else {
      placed[service] = NamedPlaces(c, service);
      if (!c.has_cluster()) gpus = std::max(gpus, s.ranks());
    }
  }
  FreeGpus free(nodes, gpus);
  for (const std::string& service : kServiceNames) {
    if (asking.empty() || !OnCuda(c, service) || PlacementOf(c, service).has_num_gpus_per_node()) continue;
    if (EntryOf(c, service) == nullptr && PlacementOf(c, service).ranks() > 0) {
      return Missing(absl::StrCat("services.", service, ".num_gpus_per_node"),
                     absl::StrCat("services.", asking.front(), " says it, so that which GPUs are the ", service,
                                  "'s has to be said, too, or in an entry of placement"));
    }
    free.Take(placed[service], ShareOf(PlacementOf(c, service)));
  }
  const auto of_a_node = [&](const std::string& service) {
    const ServicePlacement& s = PlacementOf(c, service);
    return s.num_gpus_per_node() * ShareOf(s);
  };
  std::stable_sort(asking.begin(), asking.end(),
                   [&](const std::string& a, const std::string& b) { return of_a_node(a) > of_a_node(b); });
  for (const std::string& service : asking) {
    QUARTET_ASSIGN_OR_RETURN(placed[service], FreePlaces(service, PlacementOf(c, service), &free));
  }
  return placed;
}

bool RolloutHasGpusAlone(Program program, const RunConfig& c) {
  const absl::StatusOr<std::map<std::string, Places>> placed = PlaceRanks(c);
  if (!placed.ok() || !OnCuda(c, "rollout")) return false;
  std::set<std::pair<int, int>> taken;  // by node and GPU
  for (const std::string& service : ServicesOf(program, c)) {
    if (service == "rollout" || !OnCuda(c, service)) continue;
    // An evaluation clears the penalty, and with it the reference.
    const auto has_model = [&](const ScoringModel& model) {
      return !model.is_reference() || program != Program::kEvaluate;
    };
    if (service == "scorer" && std::ranges::none_of(ScoringModels(c), has_model)) continue;
    for (const RankPlace& place : placed->at(service)) taken.emplace(place.node, place.gpu);
  }
  return std::ranges::none_of(placed->at("rollout"), [&](const RankPlace& place) {
    return taken.contains({place.node, place.gpu});
  });
}

std::vector<std::string> PlacementWarnings(const RunConfig& c) {
  std::vector<std::string> found;
  const absl::StatusOr<std::map<std::string, Places>> placed = PlaceRanks(c);
  if (!placed.ok() || !c.has_cluster()) return found;
  const auto look = [&](const std::string& service, const std::string& field, int size, const std::string& what) {
    const Places& places = placed->at(service);
    const size_t group = std::max(1, size);
    for (size_t begin = 0; begin + group <= places.size(); begin += group) {
      const RankPlace &first = places[begin], &last = places[begin + group - 1];
      if (first.gpu < 0 || first.node == last.node) continue;
      found.push_back(absl::StrCat(field, " is ", size, ": ranks ", begin, " to ", begin + group - 1, " of the ",
                                   service, " are on nodes ", first.node, " to ", last.node, ", so that ", what,
                                   " over the network between them; give each such group GPUs of one node, or make it "
                                   "smaller"));
      return;
    }
  };
  for (const std::string& service : kServiceNames) {
    const TrainerNames* const trainer = FindTrainer(service);
    const int shard = trainer == nullptr ? 0 : TrainerOf(c, trainer->section).shard_size();
    // All ranks are what it is without it.
    if (shard > 0 && shard < PlacementOf(c, service).ranks()) {
      look(service, trainer->section + ".shard_size", shard, "parameters are gathered");
    }
    if (service == "rollout") {
      look(service, "rollout.tensor_parallel_size", c.rollout().tensor_parallel_size(), "each layer's sums go");
    }
  }
  if (c.rollout().enable_sleep() && RolloutHasGpusAlone(Program::kPpo, c)) {
    found.emplace_back(
        "rollout.enable_sleep is true, and no other service has a model on the rollout's GPUs: each step waits for it "
        "to "
        "give memory back that nobody takes, and to take it again; leave it out, or let services share GPUs");
  }
  return found;
}

namespace {

// Whether two of `services` work one after the other.
bool InTurn(const RunConfig& c, const std::vector<std::string>& services) {
  const absl::StatusOr<std::map<std::string, Places>> placed = PlaceRanks(c);
  if (!placed.ok()) return false;
  struct Taken {
    int services = 0;
    bool several_ranks = false;
  };
  std::map<std::pair<int, int>, Taken> taken;  // by node and GPU
  for (const std::string& service : services) {
    const Places& places = placed->at(service);
    std::set<std::pair<int, int>> own;
    for (const RankPlace& place : places) own.emplace(place.node, place.gpu);
    for (const auto& place : own) {
      ++taken[place].services;
      taken[place].several_ranks |= places.size() > 1;
    }
  }
  // Without a cluster it is not known which services are on one host.
  return std::ranges::any_of(taken, [&](const auto& entry) {
    const auto& [place, there] = entry;
    const bool collectives_wait = there.several_ranks && place.second >= 0 && c.has_cluster();
    return there.services > 1 && (c.rollout().enable_sleep() || collectives_wait);
  });
}

}  // namespace

bool TrainersInTurn(const RunConfig& c) { return UsesCritic(c) && InTurn(c, {"policy_trainer", "critic_trainer"}); }

bool ForwardsInTurn(const RunConfig& c) {
  std::vector<std::string> services = {"policy_trainer"};
  if (UsesCritic(c)) services.emplace_back("critic_trainer");
  if (ReferenceOf(c).has_value()) services.emplace_back("scorer");
  return InTurn(c, services);
}

}  // namespace quartet
