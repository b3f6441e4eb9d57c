#include "orchestrator/plan/plan.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/config/gpu_memory.h"
#include "core/config/run_config.h"
#include "core/memory/block_cache.h"

namespace quartet {
namespace {

constexpr const char* kServices[] = {"rollout", "policy_trainer", "critic_trainer", "scorer"};
constexpr int64_t kMiB = int64_t{1} << 20;
// Further than this no search goes.
constexpr int kMostNodes = 512;
constexpr int kMostChanges = 5;

bool OnGpu(const RunConfig& config, const std::string& service) {
  return PlacementOf(config, service).device() == "cuda";
}

int64_t GpuCapacity(const RunConfig& config) {
  const ClusterConfig& cluster = config.cluster();
  return cluster.gpu().empty() ? cluster.gpu_memory_bytes() : GpuMemoryBytes(cluster.gpu());
}

void TakeLarger(const RankUse& other, RankUse* use) {
  for (int tier = 0; tier < kNumMemoryTiers; ++tier) {
    for (int i = 0; i < kNumMemoryCategories; ++i) {
      int64_t& peak = use->tiers[tier].categories[i];
      peak = std::max(peak, other.tiers[tier].categories[i]);
    }
    use->tiers[tier].total = std::max(use->tiers[tier].total, other.tiers[tier].total);
  }
  use->kv_cache_bytes = std::max(use->kv_cache_bytes, other.kv_cache_bytes);
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
    while (++i != numbers.end() && *i == last + 1) last = *i;
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
  for (const char* other : kServices) {
    if (other != service) MutablePlacementOf(&relevant, other)->Clear();
  }
  if (service != "critic_trainer") relevant.clear_critic();
  if (service != "policy_trainer") {
    const int micro_batch = config.actor().micro_rollout_batch_size();
    relevant.clear_actor();
    relevant.mutable_actor()->set_micro_rollout_batch_size(service == "scorer" ? micro_batch : 0);
  }
  if (service != "rollout") {
    RolloutConfig shape;
    shape.set_rollout_batch_size(config.rollout().rollout_batch_size());
    shape.set_n_samples_per_prompt(config.rollout().n_samples_per_prompt());
    shape.set_generate_max_len(config.rollout().generate_max_len());
    shape.set_temperature(config.rollout().temperature());
    *relevant.mutable_rollout() = shape;
  }
  return absl::StrCat(service, "/", rank, "/", config.cluster().num_nodes() > 1, "/", room.memory_bytes, "/",
                      room.outside_tensors, "/", relevant.SerializeAsString());
}

// Changes of one kind, from the mildest to the strongest; each is a set of overrides.
using Ladder = std::vector<std::vector<std::string>>;

// The cluster with `nodes` nodes of `gpus` GPUs, and every service that had all of them with all of them.
std::vector<std::string> ResizeCluster(const RunConfig& config, int nodes, int gpus) {
  const ClusterConfig& cluster = config.cluster();
  std::vector<std::string> overrides = {absl::StrCat("cluster.num_nodes=", nodes)};
  if (gpus != cluster.num_gpus_per_node()) overrides.push_back(absl::StrCat("cluster.num_gpus_per_node=", gpus));
  for (const char* service : kServices) {
    if (!OnGpu(config, service)) continue;
    const int ranks = PlacementOf(config, service).ranks();
    int gpus_of_node = gpus;
    bool grows = ranks == cluster.num_nodes() * cluster.num_gpus_per_node();
    for (const GpuPlacement& placement : config.placement()) {
      if (placement.service() != service) continue;
      grows = placement.nodes().empty();
      if (!placement.gpus().empty()) gpus_of_node = placement.gpus_size();
    }
    if (grows) overrides.push_back(absl::StrCat("services.", service, ".ranks=", nodes * gpus_of_node));
  }
  return overrides;
}

void AddTrainerLadders(const std::string& name, const TrainerConfig& trainer, std::vector<Ladder>* ladders) {
  const auto set = [&](const std::string& leaf, const auto& value) {
    return absl::StrCat(name, ".", leaf, "=", value);
  };
  if (!trainer.gradient_checkpointing()) {
    ladders->push_back({{set("gradient_checkpointing", "true")}});
  }
  Ladder stages;
  for (const int stage : {2, 3}) {
    if (trainer.zero_stage() < stage) stages.push_back({set("zero_stage", stage)});
  }
  if (!stages.empty()) ladders->push_back(stages);
  Ladder train, rollout;
  for (int size = trainer.micro_train_batch_size() / 2; size >= 1; size /= 2) {
    train.push_back({set("micro_train_batch_size", size)});
  }
  for (int size = trainer.micro_rollout_batch_size() / 2; size >= 1; size /= 2) {
    rollout.push_back({set("micro_rollout_batch_size", size)});
  }
  for (int tokens = trainer.max_tokens_per_micro_batch() / 2; tokens >= trainer.max_len() && tokens > 0; tokens /= 2) {
    train.push_back({set("max_tokens_per_micro_batch", tokens)});
  }
  if (!train.empty()) ladders->push_back(train);
  if (!rollout.empty()) ladders->push_back(rollout);
  ladders->push_back({{set("activation_offload", "true")}});
  ladders->push_back({{set("adam_offload", "true")}, {set("adam_offload", "true"), set("offload_param", "true")}});
}

// What could make the services that share a place that is too small take less of it.
std::vector<Ladder> Ladders(const RunConfig& config, const Plan& plan) {
  std::set<std::string> services;
  bool gpus_too_small = false;
  int64_t most = 0;  // that one device has too much
  for (const PlaceUse& device : plan.devices) {
    if (device.fits()) continue;
    gpus_too_small = true;
    most = std::max(most, device.bytes - device.capacity);
    for (const auto& [service, ranks] : device.ranks) services.insert(service);
  }
  for (const PlaceUse& host : plan.hosts) {
    if (host.fits()) continue;
    for (const auto& [service, ranks] : host.ranks) services.insert(service);
  }
  std::vector<Ladder> ladders;
  if (services.count("rollout") > 0) {
    const RolloutConfig& rollout = config.rollout();
    Ladder cache;
    if (rollout.has_gpu_memory_utilization()) {
      // First just enough less, rounded down to hundredths, then less and less.
      const double capacity = static_cast<double>(GpuCapacity(config));
      const int hundredths = static_cast<int>(100 * rollout.gpu_memory_utilization());
      const int enough =
          static_cast<int>(100 * (rollout.gpu_memory_utilization() - static_cast<double>(most) / capacity));
      for (int value = enough; value >= 1; value -= std::max(1, hundredths / 10)) {
        cache.push_back({absl::StrCat("rollout.gpu_memory_utilization=0.", value < 10 ? "0" : "", value)});
      }
    } else {
      for (int64_t bytes = rollout.kv_cache_bytes() / 2; bytes >= 64 * kMiB; bytes /= 2) {
        cache.push_back({absl::StrCat("rollout.kv_cache_bytes=", bytes)});
      }
    }
    if (!cache.empty()) ladders.push_back(cache);
    if (rollout.zero_stage() == 0 && rollout.tensor_parallel_size() == 1 && config.services().rollout().ranks() > 1) {
      ladders.push_back({{"rollout.zero_stage=3"}});
    }
    Ladder tokens;
    for (int size = rollout.max_num_batched_tokens() / 2; size >= 256; size /= 2) {
      tokens.push_back({absl::StrCat("rollout.max_num_batched_tokens=", size)});
    }
    if (!tokens.empty()) ladders.push_back(tokens);
  }
  if (services.count("policy_trainer") > 0) AddTrainerLadders("actor", config.actor(), &ladders);
  if (services.count("critic_trainer") > 0) AddTrainerLadders("critic", config.critic(), &ladders);
  if (services.count("scorer") > 0) {
    if (config.algorithm().kl().init_kl_coef() > 0 && config.reference().zero_stage() != 3) {
      ladders.push_back({{"reference.zero_stage=3"}});
    }
    Ladder sizes;
    for (int size = config.reward().micro_rollout_batch_size() / 2; size >= 1; size /= 2) {
      sizes.push_back({absl::StrCat("reward.micro_rollout_batch_size=", size)});
    }
    if (!sizes.empty()) ladders.push_back(sizes);
    for (int i = 0; i < config.reward().source_size(); ++i) {
      if (config.reward().source(i).model().empty() || config.reward().source(i).zero_stage() == 3) continue;
      ladders.push_back({{absl::StrCat("reward.source.", i, ".zero_stage=3")}});
    }
  }
  if (gpus_too_small) {
    Ladder nodes;
    const int now = config.cluster().num_nodes();
    for (int n = now + 1; n <= std::min(kMostNodes, 32 * now); n = n < 2 * now ? n + std::max(1, now / 4) : 2 * n) {
      nodes.push_back(ResizeCluster(config, n, config.cluster().num_gpus_per_node()));
    }
    ladders.push_back(nodes);
  }
  return ladders;
}

// What a rank's process may hold of freed temporaries beside its tensors, where these lie in host memory.
int64_t FreedBlocks(const ServicePlan& service) {
  if (service.on_gpu) return 0;
  int64_t temporaries = 0;
  for (const MemoryCategory category : {MemoryCategory::kGathered, MemoryCategory::kActivations,
                                        MemoryCategory::kLogits, MemoryCategory::kCommunication}) {
    temporaries += service.use.device().categories[static_cast<int>(category)];
  }
  const auto tensors = static_cast<size_t>(service.use.device().total);
  return std::min(static_cast<int64_t>(BlockCache::HeldAtMost(tensors) - tensors), temporaries);
}

}  // namespace

OutsideTensors DefaultOutsideTensors() {
  OutsideTensors outside;
  // The ranks of the quickstart, whose tensors take 10 to 24 MiB: peak resident sets beside the tensors' peaks, 158 to
  // 172 MiB over four services and ten runs.
  outside.process = 165 * kMiB;
  // "The currently used ~300MB": a process with a small convolutional network, CUDA 11.7 or later with lazy loading of
  // kernels (pytorch/pytorch#107667).
  outside.cuda_context = 300 * 1000 * 1000;
  // By a group over two and over more of 4 A100 with NVLink (NVIDIA/nccl#964).
  outside.nccl_of_two = 544 * kMiB;
  outside.nccl_of_more = 688 * kMiB;
  return outside;
}

bool Plan::fits() const { return excess() == 0; }

int64_t Plan::excess() const {
  int64_t excess = 0;
  for (const auto* places : {&devices, &hosts}) {
    for (const PlaceUse& place : *places) {
      if (!place.fits()) excess += place.bytes - place.capacity;
    }
  }
  return excess;
}

absl::StatusOr<RunConfig> WithOverrides(const RunConfig& config, const std::vector<std::string>& overrides) {
  RunConfig changed = config;
  for (const std::string& text : overrides) QUARTET_RETURN_IF_ERROR(ApplyOverride(text, &changed));
  QUARTET_RETURN_IF_ERROR(ResolveRunConfig(&changed, ""));
  return changed;
}

std::vector<std::pair<int, int>> PlacesOf(const RunConfig& config, const std::string& service) {
  const int ranks = PlacementOf(config, service).ranks();
  const int num_nodes = std::max(1, config.cluster().num_nodes());
  const int gpus_per_node = config.cluster().num_gpus_per_node();
  std::vector<std::pair<int, int>> places;
  if (!OnGpu(config, service)) {
    // As evenly as it goes, neighbours together.
    for (int64_t rank = 0; rank < ranks; ++rank) places.emplace_back(static_cast<int>(rank * num_nodes / ranks), -1);
    return places;
  }
  const GpuPlacement* own = nullptr;
  for (const GpuPlacement& placement : config.placement()) {
    if (placement.service() == service) own = &placement;
  }
  const bool some_nodes = own != nullptr && !own->nodes().empty(), some_gpus = own != nullptr && !own->gpus().empty();
  const int gpus = some_gpus ? own->gpus_size() : gpus_per_node;
  for (int rank = 0; rank < ranks; ++rank) {
    const int node = rank / gpus, gpu = rank % gpus;
    places.emplace_back(some_nodes ? own->nodes(node) : node, some_gpus ? own->gpus(gpu) : gpu);
  }
  return places;
}

absl::StatusOr<RankUse> Planner::Run(const RunConfig& config, const std::string& service, int rank,
                                     const GpuRoom& room) {
  const std::string key = KeyOf(config, service, rank, room);
  const auto known = runs_.find(key);
  if (known != runs_.end()) return known->second;
  QUARTET_ASSIGN_OR_RETURN(RankUse use, RunRankDry(config, service, rank, room));
  runs_.emplace(key, use);
  return use;
}

absl::StatusOr<Plan> Planner::MakePlan(const RunConfig& config) {
  Plan plan;
  struct Place {
    std::map<std::string, int> ranks;
    int64_t bytes = 0;
  };
  std::map<std::pair<int, int>, Place> gpus;
  std::map<int, Place> hosts;
  for (const std::string& service : services_) {
    QUARTET_ASSIGN_OR_RETURN(const Program program, ServiceProgram(service));
    QUARTET_RETURN_IF_ERROR(CheckFor(config, program));
    if (!HasEngine(config, service)) continue;
    ServicePlan use;
    use.service = service;
    use.on_gpu = OnGpu(config, service);
    use.ranks = PlacementOf(config, service).ranks();
    if (use.on_gpu && !config.has_cluster()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "cluster is not set; services.", service,
          ".device is \"cuda\", for example: cluster { num_nodes: 4 num_gpus_per_node: 8 gpu: \"A100-80G\" }"));
    }
    if (use.on_gpu && GpuCapacity(config) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("cluster.gpu is not set; it names one of ",
                                                     absl::StrJoin(KnownGpus(), ", "),
                                                     "; or set cluster.gpu_memory_bytes"));
    }
    GpuRoom room;
    if (use.on_gpu) {
      const int64_t nccl = use.ranks == 1 ? 0 : use.ranks == 2 ? outside_.nccl_of_two : outside_.nccl_of_more;
      use.outside_device = outside_.cuda_context + nccl;
      room = {.memory_bytes = GpuCapacity(config), .outside_tensors = use.outside_device};
    }
    // All ranks have shards of one size; what could differ is at the ends.
    QUARTET_ASSIGN_OR_RETURN(use.use, Run(config, service, 0, room));
    if (use.ranks > 1) {
      QUARTET_ASSIGN_OR_RETURN(const RankUse last, Run(config, service, use.ranks - 1, room));
      TakeLarger(last, &use.use);
    }
    use.outside_host = outside_.process + FreedBlocks(use);
    for (const auto& [node, gpu] : PlacesOf(config, service)) {
      Place& host = hosts[node];
      ++host.ranks[service];
      host.bytes += use.host_bytes();
      if (!use.on_gpu) continue;
      Place& device = gpus[{node, gpu}];
      ++device.ranks[service];
      device.bytes += use.device_bytes();
    }
    plan.services.push_back(std::move(use));
  }

  // Places with the same ranks go together.
  std::map<std::map<std::string, int>, std::vector<std::pair<int, int>>> alike;
  for (const auto& [place, use] : gpus) alike[use.ranks].push_back(place);
  for (const auto& [ranks, places] : alike) {
    std::set<int> nodes, numbers;
    for (const auto& [node, gpu] : places) {
      nodes.insert(node);
      numbers.insert(gpu);
    }
    plan.devices.push_back({.name = absl::StrCat(numbers.size() == 1 ? "GPU " : "GPUs ", Ranges(numbers), " of ",
                                                 nodes.size() == 1 ? "node " : "nodes ", Ranges(nodes)),
                            .count = static_cast<int>(places.size()),
                            .ranks = ranks,
                            .bytes = gpus[places.front()].bytes,
                            .capacity = GpuCapacity(config)});
  }
  std::map<std::map<std::string, int>, std::set<int>> alike_hosts;
  for (const auto& [node, use] : hosts) alike_hosts[use.ranks].insert(node);
  for (const auto& [ranks, nodes] : alike_hosts) {
    plan.hosts.push_back({.name = absl::StrCat(nodes.size() == 1 ? "node " : "nodes ", Ranges(nodes)),
                          .count = static_cast<int>(nodes.size()),
                          .ranks = ranks,
                          .bytes = hosts[*nodes.begin()].bytes,
                          .capacity = config.cluster().host_memory_bytes()});
  }
  return plan;
}

absl::StatusOr<std::vector<Suggestion>> Planner::Suggest(const RunConfig& config, const Plan& plan) {
  const std::vector<Ladder> ladders = Ladders(config, plan);
  // A change that the configuration refuses is none.
  const auto with = [&](const std::vector<std::string>& overrides) -> std::optional<Plan> {
    auto changed = WithOverrides(config, overrides);
    if (!changed.ok()) return std::nullopt;
    auto made = MakePlan(*changed);
    if (!made.ok()) return std::nullopt;
    return *std::move(made);
  };
  std::vector<Suggestion> suggestions;
  for (const Ladder& ladder : ladders) {
    for (const std::vector<std::string>& overrides : ladder) {
      std::optional<Plan> made = with(overrides);
      if (!made.has_value() || !made->fits()) continue;
      suggestions.push_back({overrides, *std::move(made)});
      break;
    }
  }
  if (!suggestions.empty()) return suggestions;

  // The changes that take most away, one after the other.
  std::vector<std::vector<std::string>> chosen;
  const auto joined = [](const std::vector<std::vector<std::string>>& parts) {
    std::vector<std::string> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  std::set<size_t> used;
  int64_t excess = plan.excess();
  while (excess > 0 && chosen.size() < kMostChanges) {
    size_t best = ladders.size();
    std::vector<std::string> best_change;
    int64_t best_excess = excess;
    for (size_t i = 0; i < ladders.size(); ++i) {
      if (used.count(i) > 0) continue;
      for (const std::vector<std::string>& overrides : ladders[i]) {
        std::vector<std::vector<std::string>> tried = chosen;
        tried.push_back(overrides);
        const std::optional<Plan> made = with(joined(tried));
        if (!made.has_value() || made->excess() >= best_excess) continue;
        best = i;
        best_change = overrides;
        best_excess = made->excess();
        if (best_excess == 0) break;  // the mildest of its kind that is enough
      }
      if (best_excess == 0) break;
    }
    if (best == ladders.size()) return suggestions;
    used.insert(best);
    chosen.push_back(best_change);
    excess = best_excess;
  }
  if (excess > 0) return suggestions;
  for (size_t i = 0; i < chosen.size();) {  // what the later ones made needless
    std::vector<std::vector<std::string>> fewer = chosen;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    const std::optional<Plan> made = with(joined(fewer));
    if (made.has_value() && made->fits()) {
      chosen = std::move(fewer);
    } else {
      ++i;
    }
  }
  suggestions.push_back({joined(chosen), *with(joined(chosen))});
  return suggestions;
}

absl::StatusOr<Suggestion> Planner::FewestGpus(const RunConfig& config) {
  const int gpus = config.cluster().num_gpus_per_node();
  const int all = config.cluster().num_nodes() * gpus;
  bool any = false;
  for (const std::string& service : services_) {
    if (!OnGpu(config, service) || !HasEngine(config, service)) continue;
    any = true;
    for (const GpuPlacement& placement : config.placement()) {
      if (placement.service() != service || (placement.nodes().empty() && placement.gpus().empty())) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "--search=gpus needs every service on all GPUs, and placement gives ", service, " some of them"));
    }
    if (PlacementOf(config, service).ranks() != all) {
      return absl::InvalidArgumentError(absl::StrCat("--search=gpus needs every service on all GPUs; services.",
                                                     service, ".ranks is ", PlacementOf(config, service).ranks(),
                                                     " of ", all));
    }
  }
  if (!any) return absl::InvalidArgumentError("--search=gpus needs a service with device \"cuda\"");

  std::vector<std::pair<int, int>> sizes;  // nodes, GPUs of each
  for (int n = 1; n < gpus; n *= 2) sizes.emplace_back(1, n);
  for (int n = 1; n <= kMostNodes; ++n) sizes.emplace_back(n, gpus);
  std::map<size_t, std::optional<Suggestion>> tried;
  const auto fits = [&](size_t i) {
    if (const auto known = tried.find(i); known != tried.end()) return known->second.has_value();
    const std::vector<std::string> overrides = ResizeCluster(config, sizes[i].first, sizes[i].second);
    std::optional<Suggestion>& result = tried[i];
    auto changed = WithOverrides(config, overrides);
    if (!changed.ok()) return false;
    auto plan = MakePlan(*changed);
    if (!plan.ok() || !plan->fits()) return false;
    result = Suggestion{overrides, *std::move(plan)};
    return true;
  };
  // More GPUs never make a rank larger, but for what divides them badly: double until it fits, then halve the gap.
  size_t too_few = 0, enough = 0;
  while (enough < sizes.size() && !fits(enough)) {
    too_few = enough + 1;
    enough = std::max(enough + 1, std::min(2 * enough, sizes.size() - 1));
  }
  if (enough >= sizes.size()) {
    return absl::NotFoundError(absl::StrCat("it does not fit on ", kMostNodes, " nodes of ", gpus, " GPUs either"));
  }
  while (too_few < enough) {
    const size_t middle = (too_few + enough) / 2;
    if (fits(middle)) {
      enough = middle;
    } else {
      too_few = middle + 1;
    }
  }
  return *tried[enough];
}

absl::StatusOr<Suggestion> Planner::LargestMicroBatch(const RunConfig& config) {
  const int ranks = std::min(config.services().policy_trainer().ranks(), config.services().critic_trainer().ranks());
  const int most = (config.train().train_batch_size() + ranks - 1) / ranks;
  const auto try_size = [&](int size) -> absl::StatusOr<Suggestion> {
    const std::vector<std::string> overrides = {absl::StrCat("actor.micro_train_batch_size=", size),
                                                absl::StrCat("critic.micro_train_batch_size=", size)};
    QUARTET_ASSIGN_OR_RETURN(const RunConfig changed, WithOverrides(config, overrides));
    QUARTET_ASSIGN_OR_RETURN(Plan plan, MakePlan(changed));
    return Suggestion{overrides, std::move(plan)};
  };
  QUARTET_ASSIGN_OR_RETURN(Suggestion best, try_size(1));
  if (!best.plan.fits()) return absl::NotFoundError("it does not fit with a micro-batch of 1 sequence either");
  int low = 1, high = 2;  // `low` fits
  while (low < most) {
    const int size = std::min(high, most);
    QUARTET_ASSIGN_OR_RETURN(Suggestion next, try_size(size));
    if (!next.plan.fits()) break;
    low = size;
    high = 2 * size;
    best = std::move(next);
  }
  high = std::min(high, most + 1);
  while (high - low > 1) {
    const int size = (low + high) / 2;
    QUARTET_ASSIGN_OR_RETURN(Suggestion next, try_size(size));
    if (next.plan.fits()) {
      low = size;
      best = std::move(next);
    } else {
      high = size;
    }
  }
  return best;
}

}  // namespace quartet
