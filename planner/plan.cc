#include "planner/plan.h"

#include <algorithm>
#include <array>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/config/gpus.h"
#include "core/config/placement.h"
#include "core/config/run_config.h"
#include "core/config/services.h"
#include "core/hardware/cores.h"
#include "core/memory/block_cache.h"
#include "core/memory/cuda_context.h"
#include "core/memory/pinned_blocks.h"
#include "planner/largest_batches.h"

namespace quartet {
namespace {

void TakeLarger(const RankUse& other, RankUse* use) {
  for (int tier = 0; tier < kNumMemoryTiers; ++tier) {
    for (int i = 0; i < kNumMemoryCategories; ++i) {
      int64_t& peak = use->tiers[tier].categories[i];
      peak = std::max(peak, other.tiers[tier].categories[i]);
    }
    use->tiers[tier].total = std::max(use->tiers[tier].total, other.tiers[tier].total);
    use->tiers[tier].asleep = std::max(use->tiers[tier].asleep, other.tiers[tier].asleep);
  }
  for (size_t i = 0; i < use->traffic.size() && i < other.traffic.size(); ++i) {
    use->traffic[i].sent_bytes = std::max(use->traffic[i].sent_bytes, other.traffic[i].sent_bytes);
  }
}

// "0-3, 6".
std::string Ranges(const std::set<int>& numbers) {
  std::vector<std::string> parts;
  for (auto i = numbers.begin(); i != numbers.end();) {
    const int first = *i;
    int last = first;
    for (++i; i != numbers.end() && *i == last + 1; ++i) last = *i;
    parts.push_back(first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last));
  }
  return absl::StrJoin(parts, ", ");
}

// What a run of one service depends on, as a key: everything but what belongs to other services.
std::string KeyOf(const RunConfig& config, const std::string& service, int rank, const GpuRoom& room) {
  RunConfig relevant = config;
  relevant.clear_cluster();
  relevant.clear_placement();
  relevant.clear_run_dir();
  for (const std::string& other : kServiceNames) {
    if (other != service) MutablePlacementOf(&relevant, other)->Clear();
  }
  if (service != "critic_trainer") relevant.clear_critic();
  if (service != "policy_trainer") {
    const int micro_batch = config.actor().micro_rollout_batch_size();
    relevant.clear_actor();
    relevant.mutable_actor()->set_micro_rollout_batch_size(service == "scorer" ? micro_batch : 0);
    if (service == "rollout" && config.actor().has_lora()) {
      *relevant.mutable_actor()->mutable_lora() = config.actor().lora();
    }
  }
  if (service != "rollout") {
    relevant.clear_eval();
    RolloutConfig& shape = *relevant.mutable_rollout();
    shape.Clear();
    shape.set_rollout_batch_size(config.rollout().rollout_batch_size());
    shape.set_n_samples_per_prompt(config.rollout().n_samples_per_prompt());
    shape.set_generate_max_len(config.rollout().generate_max_len());
    shape.set_temperature(config.rollout().temperature());
  }
  const bool by_room = service == "rollout" && config.rollout().has_gpu_memory_utilization();
  return absl::StrCat(service, "/", rank, "/", config.cluster().num_nodes() > 1, "/", by_room ? room.memory_bytes : 0,
                      "/", by_room ? room.outside_tensors : 0, "/", relevant.SerializeAsString());
}

// What a rank's process may hold of freed temporaries beside its tensors in host memory.
int64_t FreedBlocks(const ServicePlan& service) {
  const auto& host = service.on_gpu ? service.use.host() : service.use.device();
  int64_t temporaries = 0;
  for (const MemoryCategory category : {MemoryCategory::kGathered, MemoryCategory::kActivations,
                                        MemoryCategory::kLogits, MemoryCategory::kCommunication}) {
    temporaries += host.categories[static_cast<int>(category)];
  }
  if (service.on_gpu) {
    return std::min(temporaries, temporaries / 8 + static_cast<int64_t>(PinnedBlocks::kSlack));
  }
  const auto tensors = static_cast<size_t>(host.total);
  return std::min(static_cast<int64_t>(BlockCache::HeldAtMost(tensors) - tensors), temporaries);
}

// How many neighbours among the ranks of a service have a model between them.
int RanksTogether(const RunConfig& config, const std::string& service) {
  if (service == "rollout") return std::max(1, config.rollout().tensor_parallel_size());
  const TrainerNames* const names = FindTrainer(service);
  if (names == nullptr) return 1;
  const TrainerConfig& trainer = TrainerOf(config, names->section);
  return trainer.zero_stage() == 0 ? 1 : std::max(1, trainer.shard_size());
}

// "GPUs 0-7 of nodes 0-1", "GPUs 4-7 of node 0, GPUs 0-3 of node 1", of pairs of a node and a GPU.
std::string NameOfGpus(const std::vector<std::pair<int, int>>& places) {
  std::map<int, std::set<int>> of_node;
  for (const auto& [node, gpu] : places) of_node[node].insert(gpu);
  std::map<std::set<int>, std::set<int>> nodes_with;
  for (const auto& [node, gpus] : of_node) nodes_with[gpus].insert(node);
  std::map<int, std::string> texts;  // by the first node
  for (const auto& [gpus, nodes] : nodes_with) {
    texts[*nodes.begin()] = absl::StrCat(gpus.size() == 1 ? "GPU " : "GPUs ", Ranges(gpus), " of ",
                                         nodes.size() == 1 ? "node " : "nodes ", Ranges(nodes));
  }
  std::string all;
  for (const auto& [node, text] : texts) absl::StrAppend(&all, all.empty() ? "" : ", ", text);
  return all;
}

// The sizes of the groups of several ranks that a rank has communicators for (core/comm/mesh.h, rollout's engines).
std::vector<int> GroupsOfRank(const RunConfig& config, const std::string& service) {
  const int ranks = PlacementOf(config, service).ranks(), together = RanksTogether(config, service);
  std::vector<int> sizes;
  if (ranks > 1) sizes.push_back(ranks);
  if (together == 1 || together == ranks) return sizes;
  sizes.push_back(together);
  if (service != "rollout") sizes.push_back(ranks / together);
  return sizes;
}

// Whether the rollout and the trainers sleep while the other works; whether each trainer does while the other works.
struct Turns {
  bool sleep = false;
  bool trainers = false;
};

// What a place has to have room for: the largest of the phases of a step. Where nobody sleeps all are alike.
class PhaseBytes {
 public:
  int64_t most() const {
    const std::array<int64_t, 3> all = phases();
    return *std::ranges::max_element(all);
  }
  std::array<int64_t, 3> phases() const { return {phases_[kGenerating] + saving_, phases_[kPolicy], phases_[kCritic]}; }
  // Of what is there in all.
  void Add(int64_t bytes) {
    for (int64_t& phase : phases_) phase += bytes;
  }
  // Of a rank, which takes `awake` bytes, and `asleep` in the phases of others. The scorer judges answers while others
  // are generated, and is asked for the reference's log-probabilities beside the trainers. One trainer at a time is
  // saved, group by group of which a rank has `gathered` bytes, when the rollout is awake again.
  void Add(const std::string& service, const Turns& turns, int64_t awake, int64_t asleep, int64_t gathered) {
    if (turns.sleep && FindTrainer(service) != nullptr) saving_ = std::max(saving_, gathered);
    const auto works = [&](Phase phase) {
      if (!turns.sleep || service == "scorer") return true;
      if (service == "rollout" || phase == kGenerating) return (service == "rollout") == (phase == kGenerating);
      return !turns.trainers || (service == "policy_trainer") == (phase == kPolicy);
    };
    for (const Phase phase : {kGenerating, kPolicy, kCritic}) phases_[phase] += works(phase) ? awake : asleep;
  }

 private:
  enum Phase { kGenerating, kPolicy, kCritic };  // the last two one, where the trainers work side by side
  std::array<int64_t, 3> phases_ = {};
  int64_t saving_ = 0;
};

// Of programs without a limit nothing is known.
int64_t ProgramBytes(const RunConfig& config) {
  const int cores = config.cluster().num_cpus_per_node() > 0 ? config.cluster().num_cpus_per_node() : AvailableCores();
  int64_t bytes = 0;
  for (const RewardSource& source : config.reward().source()) {
    if (source.code().empty() && source.command().empty()) continue;
    bytes += source.memory_limit_bytes() * (source.has_workers() ? source.workers() : cores);
  }
  return bytes;
}

}  // namespace

OutsideTensors DefaultOutsideTensors() {
  OutsideTensors outside;
  // The ranks of the quickstart, whose tensors take 10 to 24 MiB: peak resident sets beside the tensors' peaks, 158 to
  // 172 MiB over four services and ten runs.
  outside.process = 165 * kMiB;
  // Of four services of 1.24 B parameters on an H100 and an H200, CUDA 13.0: 785 (a scorer) to 1,079 MiB (a trainer)
  // beside tensors.
  outside.process_on_gpu = 1080 * kMiB;
  outside.cuda_context = kCudaContextBytes;
  // NCCL's buffers for a group: 4 A100 with NVLink (NVIDIA/nccl#964).
  outside.nccl_of_two = 544 * kMiB;
  outside.nccl_of_more = 688 * kMiB;
  return outside;
}

bool Plan::fits() const {
  const auto fit = [](const std::vector<PlaceUse>& places) {
    return std::all_of(places.begin(), places.end(), [](const PlaceUse& place) { return place.fits(); });
  };
  return fit(devices) && fit(hosts);
}

int64_t Plan::excess() const {
  int64_t excess = 0;
  for (const auto* places : {&devices, &hosts}) {
    for (const PlaceUse& place : *places) excess += place.excess();
  }
  return excess;
}

bool OnGpu(const RunConfig& config, const std::string& service) {
  return PlacementOf(config, service).device() == "cuda";
}

int64_t GpuCapacity(const RunConfig& config) {
  const Gpu* known = FindGpu(config.cluster().gpu());
  return known == nullptr ? config.cluster().gpu_memory_bytes() : known->memory_bytes;
}

absl::StatusOr<RankUse> Planner::Run(const RunConfig& config, const std::string& service, int rank,
                                     const GpuRoom& room) {
  const std::string key = KeyOf(config, service, rank, room);
  const auto known = runs_.find(key);
  if (known != runs_.end()) return known->second;
  QUARTET_ASSIGN_OR_RETURN(RankUse use, RunRankDry(config, service, rank, room, program_));
  runs_.emplace(key, use);
  return use;
}

absl::StatusOr<Plan> Planner::MakePlan(const RunConfig& config) {
  // All that can be wrong before anything is run.
  for (const std::string& service : services_) {
    QUARTET_ASSIGN_OR_RETURN(const Program program, ServiceProgram(service));
    QUARTET_RETURN_IF_ERROR(CheckFor(config, program));
    if (!HasEngine(config, service) || !OnGpu(config, service)) continue;
    if (!config.has_cluster()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "cluster is not set; services.", service,
          ".device is \"cuda\", for example: cluster { num_nodes: 4 num_gpus_per_node: 8 gpu: \"A100-80G\" }"));
    }
    if (GpuCapacity(config) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("cluster.gpu is not set; it names one of ", KnownGpuNames(),
                                                     "; or set cluster.gpu_memory_bytes"));
    }
  }
  QUARTET_ASSIGN_OR_RETURN(const auto places, PlaceRanks(config));
  const Turns turns = {.sleep = config.rollout().enable_sleep(), .trainers = TrainersInTurn(config)};
  Plan plan;
  struct Place {
    std::map<std::string, int> ranks;
    PhaseBytes bytes;
  };
  std::map<std::pair<int, int>, Place> gpus;
  std::map<int, Place> hosts;
  for (const std::string& service : services_) {
    LeaderPlan leader = {.service = service};
    if (service == "scorer") leader.programs = ProgramBytes(config);
    const bool has_engine = HasEngine(config, service);
    if (!has_engine && leader.programs == 0) continue;
    leader.calls = LeaderCallBytes(config, service, program_);
    hosts[places.at(service).front().node].bytes.Add(leader.calls + leader.programs);
    plan.leaders.push_back(std::move(leader));
    if (!has_engine) {
      for (const RankPlace& place : places.at(service)) {
        ++hosts[place.node].ranks[service];
        hosts[place.node].bytes.Add(outside_.process);
      }
      continue;
    }
    ServicePlan use;
    use.service = service;
    use.on_gpu = OnGpu(config, service);
    use.ranks = PlacementOf(config, service).ranks();
    GpuRoom room;
    if (use.on_gpu) {
      use.outside_device = outside_.cuda_context;
      for (const int ranks : GroupsOfRank(config, service)) {
        use.outside_device += ranks == 2 ? outside_.nccl_of_two : outside_.nccl_of_more;
      }
      room = {.memory_bytes = GpuCapacity(config), .outside_tensors = use.outside_device};
    }
    // All ranks have shards of one size; what could differ is at the ends.
    QUARTET_ASSIGN_OR_RETURN(use.use, Run(config, service, 0, room));
    if (use.ranks > 1) {
      QUARTET_ASSIGN_OR_RETURN(const RankUse last, Run(config, service, use.ranks - 1, room));
      TakeLarger(last, &use.use);
    }
    use.outside_host = (use.on_gpu ? outside_.process_on_gpu : outside_.process) + FreedBlocks(use);
    for (const auto& [node, gpu] : places.at(service)) {
      Place& host = hosts[node];
      ++host.ranks[service];
      const int64_t gathered = use.use.device().categories[static_cast<int>(MemoryCategory::kGathered)];
      host.bytes.Add(service, turns, use.host_bytes(), use.asleep_host_bytes(), use.on_gpu ? 0 : gathered);
      if (!use.on_gpu) continue;
      Place& device = gpus[{node, gpu}];
      ++device.ranks[service];
      device.bytes.Add(service, turns, use.device_bytes(), use.asleep_device_bytes(), gathered);
    }
    plan.services.push_back(std::move(use));
  }

  // Places with the same ranks go together.
  std::map<std::map<std::string, int>, std::vector<std::pair<int, int>>> alike;
  for (const auto& [place, use] : gpus) alike[use.ranks].push_back(place);
  for (const auto& [ranks, alike_places] : alike) {
    plan.devices.push_back({.name = NameOfGpus(alike_places),
                            .count = static_cast<int>(alike_places.size()),
                            .ranks = ranks,
                            .bytes = gpus[alike_places.front()].bytes.most(),
                            .phases = gpus[alike_places.front()].bytes.phases(),
                            .capacity = GpuCapacity(config)});
  }
  std::map<std::map<std::string, int>, std::set<int>> alike_hosts;
  for (const auto& [node, use] : hosts) alike_hosts[use.ranks].insert(node);
  for (const auto& [ranks, nodes] : alike_hosts) {
    PhaseBytes most;
    for (const int node : nodes) {
      if (hosts[node].bytes.most() > most.most()) most = hosts[node].bytes;
    }
    plan.hosts.push_back({.name = absl::StrCat(nodes.size() == 1 ? "node " : "nodes ", Ranges(nodes)),
                          .count = static_cast<int>(nodes.size()),
                          .ranks = ranks,
                          .bytes = most.most(),
                          .phases = most.phases(),
                          .capacity = config.cluster().host_memory_bytes()});
  }
  return plan;
}

}  // namespace quartet
