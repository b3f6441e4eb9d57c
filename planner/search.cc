#include "planner/search.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/config/batches/updates.h"
#include "core/config/gpus.h"
#include "core/config/run_config.h"
#include "core/config/services.h"

namespace quartet {
namespace {

// Further than this no search goes.
constexpr int kMostNodes = 512;
constexpr int kMostChanges = 5;

// Changes of one kind, from the mildest to the strongest; each is a set of overrides.
using Ladder = std::vector<std::vector<std::string>>;

// The cluster with `nodes` nodes of `gpus` GPUs, and every service that had all of them with all of them.
std::vector<std::string> ResizeCluster(const RunConfig& config, int nodes, int gpus) {
  const ClusterConfig& cluster = config.cluster();
  std::vector<std::string> overrides = {absl::StrCat("cluster.num_nodes=", nodes)};
  if (nodes == 1 && cluster.inter_node_gbps() != 0) overrides.emplace_back("cluster.inter_node_gbps=0");
  if (gpus != cluster.num_gpus_per_node()) overrides.push_back(absl::StrCat("cluster.num_gpus_per_node=", gpus));
  for (const std::string& service : kServiceNames) {
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

// Fewer and fewer tokens of a micro-batch, down to the longest sequence.
std::vector<int64_t> FewerTokens(int64_t tokens, int64_t longest) {
  std::vector<int64_t> fewer;
  for (int64_t n = tokens / 2; n > longest; n /= 2) fewer.push_back(n);
  if (tokens > longest) fewer.push_back(longest);
  return fewer;
}

Ladder TokenLadder(const std::string& section, int64_t tokens, int64_t longest) {
  Ladder ladder;
  for (const int64_t n : FewerTokens(tokens, longest)) {
    ladder.push_back({absl::StrCat(section, ".max_tokens_per_micro_batch=", n)});
  }
  return ladder;
}

// Of both trainers at once.
Ladder BothTrainersTokenLadder(const TrainerConfig& actor, const TrainerConfig& critic) {
  Ladder ladder;
  const int64_t most = std::max(actor.max_tokens_per_micro_batch(), critic.max_tokens_per_micro_batch());
  if (actor.max_tokens_per_micro_batch() == 0 || critic.max_tokens_per_micro_batch() == 0) return ladder;
  for (const int64_t n : FewerTokens(most, std::min(actor.max_len(), critic.max_len()))) {
    std::vector<std::string> overrides;
    for (const auto& [section, trainer] : {std::pair("actor", &actor), std::pair("critic", &critic)}) {
      const int64_t tokens =
          std::min<int64_t>(std::max<int64_t>(n, trainer->max_len()), trainer->max_tokens_per_micro_batch());
      overrides.push_back(absl::StrCat(section, ".max_tokens_per_micro_batch=", tokens));
    }
    ladder.push_back(overrides);
  }
  return ladder;
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
  Ladder train = TokenLadder(name, trainer.max_tokens_per_micro_batch(), trainer.max_len()), rollout;
  for (int size = trainer.micro_train_batch_size() / 2; size >= 1; size /= 2) {
    train.push_back({set("micro_train_batch_size", size)});
  }
  for (int size = trainer.micro_rollout_batch_size() / 2; size >= 1; size /= 2) {
    rollout.push_back({set("micro_rollout_batch_size", size)});
  }
  if (!train.empty()) ladders->push_back(train);
  if (!rollout.empty()) ladders->push_back(rollout);
  ladders->push_back({{set("activation_offload", "true")}});
  // Which excludes sleep_offload.
  std::vector<std::string> optimizer = {set("adam_offload", "true")};
  if (trainer.sleep_offload()) optimizer.push_back(set("sleep_offload", "false"));
  Ladder offload = {optimizer};
  optimizer.push_back(set("offload_param", "true"));
  offload.push_back(optimizer);
  ladders->push_back(offload);
}

// What could make the services that share a place that is too small take less of it.
std::vector<Ladder> Ladders(const RunConfig& config, const Plan& plan) {
  std::set<std::string> services;
  int64_t most = 0;  // that one device has too much
  for (const PlaceUse& device : plan.devices) {
    if (device.excess() == 0) continue;
    most = std::max(most, device.excess());
    for (const auto& [service, ranks] : device.ranks) services.insert(service);
  }
  for (const PlaceUse& host : plan.hosts) {
    if (host.excess() == 0) continue;
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
  if (services.count("rollout") > 0 && services.count("policy_trainer") > 0) {
    Ladder sleep = {{}};
    if (!config.rollout().enable_sleep()) sleep[0].emplace_back("rollout.enable_sleep=true");
    for (const auto& [service, section, model, state] : kTrainers) {
      if (services.count(service) == 0 || TrainerOf(config, section).sleep_offload()) continue;
      const Ladder without = sleep;
      for (std::vector<std::string> rung : without) {
        rung.push_back(section + ".sleep_offload=true");
        sleep.push_back(rung);
      }
    }
    ladders.push_back(sleep);
  }
  if (services.count("policy_trainer") > 0 && services.count("critic_trainer") > 0) {
    ladders.push_back(BothTrainersTokenLadder(config.actor(), config.critic()));
  }
  for (const auto& [service, section, model, state] : kTrainers) {
    if (services.count(service) > 0) AddTrainerLadders(section, TrainerOf(config, section), &ladders);
  }
  if (services.count("scorer") > 0) {
    const int64_t longest = config.actor().max_len();
    ladders.push_back(TokenLadder("reference", config.reference().max_tokens_per_micro_batch(), longest));
    Ladder sizes = TokenLadder("reward", config.reward().max_tokens_per_micro_batch(), longest);
    for (int size = config.reward().micro_rollout_batch_size() / 2; size >= 1; size /= 2) {
      sizes.push_back({absl::StrCat("reward.micro_rollout_batch_size=", size)});
    }
    if (!sizes.empty()) ladders.push_back(sizes);
    for (const ScoringModel& model : ScoringModels(config)) {
      const std::string section = model.is_reference() ? model.section : absl::StrCat("reward.source.", model.source);
      const std::string sharded = section + ".zero_stage=3", offloaded = section + ".offload_param=true";
      if (model.zero_stage != 3) ladders.push_back({{sharded}, {sharded, offloaded}});
      if (model.zero_stage == 3 && !model.offload_param) ladders.push_back({{offloaded}});
    }
  }
  return ladders;
}

// More nodes, where GPUs are too small.
Ladder NodesLadder(const RunConfig& config, const Plan& plan) {
  Ladder nodes;
  if (std::ranges::none_of(plan.devices, [](const PlaceUse& device) { return device.excess() > 0; })) return nodes;
  const int now = config.cluster().num_nodes();
  for (int n = now + 1; n <= std::min(kMostNodes, 32 * now); n = n < 2 * now ? n + std::max(1, now / 4) : 2 * n) {
    nodes.push_back(ResizeCluster(config, n, config.cluster().num_gpus_per_node()));
  }
  return nodes;
}

// Plans a set of overrides; nothing where the configuration refuses it.
using Try = std::function<std::optional<Suggestion>(const std::vector<std::string>& overrides)>;

// The mildest change of a ladder that is enough.
std::optional<Suggestion> FirstThatFits(const Ladder& ladder, const Try& with) {
  for (const std::vector<std::string>& overrides : ladder) {
    std::optional<Suggestion> made = with(overrides);
    if (made.has_value() && made->plan.excess() == 0) return made;
  }
  return std::nullopt;
}

// The changes that take most away, one after the other, of which nothing can be left out.
std::optional<Suggestion> Combine(const std::vector<Ladder>& ladders, int64_t excess, const Try& with) {
  std::vector<std::vector<std::string>> chosen;
  const auto joined = [](const std::vector<std::vector<std::string>>& parts) {
    std::vector<std::string> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  std::set<size_t> used;
  while (excess > 0 && chosen.size() < kMostChanges) {
    size_t best = ladders.size();
    std::vector<std::string> best_change;
    int64_t best_excess = excess;
    for (size_t i = 0; i < ladders.size(); ++i) {
      if (used.count(i) > 0) continue;
      for (const std::vector<std::string>& overrides : ladders[i]) {
        std::vector<std::vector<std::string>> tried = chosen;
        tried.push_back(overrides);
        const std::optional<Suggestion> made = with(joined(tried));
        if (!made.has_value() || made->plan.excess() >= best_excess) continue;
        best = i;
        best_change = overrides;
        best_excess = made->plan.excess();
        if (best_excess == 0) break;  // the mildest of its kind that is enough
      }
      if (best_excess == 0) break;
    }
    if (best == ladders.size()) return std::nullopt;
    used.insert(best);
    chosen.push_back(best_change);
    excess = best_excess;
  }
  if (excess > 0) return std::nullopt;
  for (size_t i = 0; i < chosen.size();) {  // what the later ones made needless
    std::vector<std::vector<std::string>> fewer = chosen;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    const std::optional<Suggestion> made = with(joined(fewer));
    if (made.has_value() && made->plan.excess() == 0) {
      chosen = std::move(fewer);
    } else {
      ++i;
    }
  }
  return with(joined(chosen));
}

}  // namespace

absl::StatusOr<RunConfig> WithOverrides(const RunConfig& config, const std::vector<std::string>& overrides,
                                        Program program) {
  RunConfig changed = config;
  QUARTET_RETURN_IF_ERROR(ApplyOverrides(overrides, &changed));
  QUARTET_RETURN_IF_ERROR(ResolveRunConfig(&changed, "", program));
  return changed;
}

absl::StatusOr<Suggestion> PlanWith(Planner& planner, const RunConfig& config,
                                    const std::vector<std::string>& overrides) {
  Suggestion suggestion;
  suggestion.overrides = overrides;
  QUARTET_ASSIGN_OR_RETURN(suggestion.config, WithOverrides(config, overrides, planner.program()));
  QUARTET_ASSIGN_OR_RETURN(suggestion.plan, planner.MakePlan(suggestion.config));
  return suggestion;
}

absl::StatusOr<std::vector<Suggestion>> Suggest(Planner& planner, const RunConfig& config, const Plan& plan) {
  const Try with = [&](const std::vector<std::string>& overrides) -> std::optional<Suggestion> {
    auto made = PlanWith(planner, config, overrides);
    if (!made.ok()) return std::nullopt;
    return *std::move(made);
  };
  std::vector<Ladder> ladders = Ladders(config, plan);
  std::vector<Suggestion> suggestions;
  const auto add = [&suggestions](std::optional<Suggestion> made) {
    if (made.has_value()) suggestions.push_back(*std::move(made));
  };
  for (const Ladder& ladder : ladders) add(FirstThatFits(ladder, with));
  if (suggestions.empty()) add(Combine(ladders, plan.excess(), with));
  // That more GPUs would do says nothing of what would do on these.
  const Ladder nodes = NodesLadder(config, plan);
  add(FirstThatFits(nodes, with));
  if (!suggestions.empty()) return suggestions;
  ladders.push_back(nodes);
  add(Combine(ladders, plan.excess(), with));
  return suggestions;
}

absl::StatusOr<Suggestion> FewestGpus(Planner& planner, const RunConfig& config) {
  const int gpus = config.cluster().num_gpus_per_node();
  const int all = config.cluster().num_nodes() * gpus;
  bool any = false;
  for (const std::string& service : planner.services()) {
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

  // Nodes, and GPUs of each, that the configuration can be on: ranks come in multiples of what is sharded within, or
  // computed by, several of them.
  int multiple = 1;
  for (const std::string& service : planner.services()) {
    const TrainerNames* const trainer = FindTrainer(service);
    const int of_service = trainer != nullptr     ? TrainerOf(config, trainer->section).shard_size()
                           : service == "rollout" ? config.rollout().tensor_parallel_size()
                                                  : 1;
    multiple = std::lcm(multiple, std::max(1, of_service));
  }
  std::vector<std::pair<int, int>> sizes;
  const auto consider = [&](int nodes, int of_each) {
    if (nodes * of_each % multiple == 0) sizes.emplace_back(nodes, of_each);
  };
  for (int n = 1; n < gpus; n *= 2) consider(1, n);
  for (int n = 1; n <= kMostNodes; ++n) consider(n, gpus);
  if (sizes.empty()) {
    return absl::NotFoundError(absl::StrCat("on up to ", kMostNodes, " nodes of ", gpus,
                                            " GPUs there is no multiple of ", multiple,
                                            " ranks, which shard_size and tensor_parallel_size ask for"));
  }
  std::map<size_t, std::optional<Suggestion>> tried;
  const auto fits = [&](size_t i) {
    if (const auto known = tried.find(i); known != tried.end()) return known->second.has_value();
    const std::vector<std::string> overrides = ResizeCluster(config, sizes[i].first, sizes[i].second);
    std::optional<Suggestion>& result = tried[i];
    auto made = PlanWith(planner, config, overrides);
    if (!made.ok() || made->plan.excess() > 0) return false;
    result = *std::move(made);
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

absl::StatusOr<std::vector<Suggestion>> WhatToRent(Planner& planner, const RunConfig& config) {
  std::vector<Suggestion> offers;
  for (const Gpu& gpu : KnownGpus()) {
    std::vector<std::string> on_gpus = {absl::StrCat("cluster.gpu=", gpu.name)};
    for (const std::string& service : planner.services()) {
      if (!HasEngine(config, service)) continue;
      on_gpus.push_back(absl::StrCat("services.", service, ".device=cuda"));
      on_gpus.push_back(absl::StrCat("services.", service, ".ranks=8"));
    }
    const auto node = WithOverrides(config, on_gpus, planner.program());
    if (!node.ok()) continue;
    auto fewest = FewestGpus(planner, *node);
    if (absl::IsNotFound(fewest.status())) continue;
    if (!fewest.ok()) return fewest.status();
    offers.push_back(*std::move(fewest));
    offers.back().overrides.insert(offers.back().overrides.begin(), on_gpus.begin(), on_gpus.end());
  }
  const auto count = [](const Suggestion& offer) {
    return offer.config.cluster().num_nodes() * offer.config.cluster().num_gpus_per_node();
  };
  std::stable_sort(offers.begin(), offers.end(),
                   [&](const Suggestion& a, const Suggestion& b) { return count(a) < count(b); });
  return offers;
}

absl::StatusOr<Suggestion> LargestMicroBatch(Planner& planner, const RunConfig& config) {
  std::vector<std::pair<std::string, const TrainerConfig*>> trainers = {{"actor", &config.actor()}};
  int ranks = config.services().policy_trainer().ranks();
  int longest = config.actor().max_len();
  const std::vector<std::string>& services = planner.services();
  if (std::find(services.begin(), services.end(), "critic_trainer") != services.end()) {
    trainers.emplace_back("critic", &config.critic());
    ranks = std::min(ranks, config.services().critic_trainer().ranks());
    longest = std::max(longest, config.critic().max_len());
  }
  const int most =
      std::min((TrainBatchSize(config) + ranks - 1) / ranks, std::numeric_limits<int32_t>::max() / longest);
  const auto try_size = [&](int size) -> absl::StatusOr<Suggestion> {
    std::vector<std::string> overrides;
    for (const auto& [section, trainer] : trainers) {
      overrides.push_back(trainer->max_tokens_per_micro_batch() == 0
                              ? absl::StrCat(section, ".micro_train_batch_size=", size)
                              : absl::StrCat(section, ".max_tokens_per_micro_batch=", size * trainer->max_len()));
    }
    return PlanWith(planner, config, overrides);
  };
  QUARTET_ASSIGN_OR_RETURN(Suggestion best, try_size(1));
  if (best.plan.excess() > 0) return absl::NotFoundError("it does not fit with a micro-batch of 1 sequence either");
  int low = 1, high = 2;  // `low` fits
  while (low < most) {
    const int size = std::min(high, most);
    QUARTET_ASSIGN_OR_RETURN(Suggestion next, try_size(size));
    if (next.plan.excess() > 0) break;
    low = size;
    high = 2 * size;
    best = std::move(next);
  }
  high = std::min(high, most + 1);
  while (high - low > 1) {
    const int size = (low + high) / 2;
    QUARTET_ASSIGN_OR_RETURN(Suggestion next, try_size(size));
    if (next.plan.excess() == 0) {
      low = size;
      best = std::move(next);
    } else {
      high = size;
    }
  }
  return best;
}

}  // namespace quartet
