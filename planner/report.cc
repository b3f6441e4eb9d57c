#include "planner/report.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/config/batches/call_sizes.h"
#include "core/config/batches/micro_batches.h"
#include "core/config/placement.h"
#include "core/config/services.h"
#include "planner/cache_use.h"
#include "planner/links.h"

namespace quartet {
namespace {

constexpr double kGiB = 1 << 30;

std::string Bytes(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  return value >= kGiB ? absl::StrFormat("%.2f GiB", value / kGiB)
                       : absl::StrFormat("%.1f MiB", value / static_cast<double>(kMiB));
}

// Columns as wide as what is in them; the first `left` to the left, the others to the right.
std::string Table(const std::vector<std::vector<std::string>>& rows, size_t left) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&line, i == 0 ? "" : "  ", i < left ? row[i] + space : space + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string MemoryTable(const Plan& plan) {
  double unit = kMiB;
  for (const ServicePlan& service : plan.services) {
    if (static_cast<double>(std::max(service.device_bytes(), service.host_bytes())) >= kGiB) unit = kGiB;
  }
  const auto cell = [&](int64_t bytes) {
    return bytes == 0 ? std::string("-") : absl::StrFormat("%.2f", static_cast<double>(bytes) / unit);
  };
  std::vector<std::vector<std::string>> rows = {{"service", "ranks", "memory"}};
  for (int i = 0; i < kNumMemoryCategories; ++i) {
    rows[0].emplace_back(MemoryCategoryName(static_cast<MemoryCategory>(i)));
  }
  for (const char* name : {"at once", "no tensor", "a rank"}) rows[0].emplace_back(name);
  for (const ServicePlan& service : plan.services) {
    for (int tier = 0; tier < kNumMemoryTiers; ++tier) {
      const TierUse& use = service.use.tiers[tier];
      const bool is_host = static_cast<MemoryTier>(tier) == MemoryTier::kHost;
      // On CPUs both tiers are the process's.
      const bool has_process = is_host || !service.on_gpu;
      if (is_host && use.total == 0 && (!service.on_gpu || service.outside_host == 0)) continue;
      const int64_t outside = !has_process                ? service.outside_device
                              : is_host == service.on_gpu ? service.outside_host
                                                          : 0;
      std::vector<std::string>& row = rows.emplace_back();
      row.push_back(service.service);
      row.push_back(absl::StrCat(service.ranks));
      row.emplace_back(!is_host && service.on_gpu ? "GPU" : "host");
      for (const int64_t bytes : use.categories) row.push_back(cell(bytes));
      row.push_back(cell(use.total));
      row.push_back(cell(outside));
      row.push_back(cell(use.total + outside));
    }
  }
  return absl::StrCat("Peak of one rank, ", unit == kGiB ? "GiB" : "MiB", "\n", Table(rows, 3));
}

std::string LeaderLines(const Plan& plan) {
  std::vector<std::string> calls;
  std::string programs;
  for (const LeaderPlan& leader : plan.leaders) {
    calls.push_back(absl::StrCat(leader.service, " ", Bytes(leader.calls)));
    if (leader.programs == 0) continue;
    programs = absl::StrCat("Programs that the scorer starts, beside its first rank: ", Bytes(leader.programs), "\n");
  }
  if (calls.empty()) return "";
  return absl::StrCat("\nCalls, beside each service's first rank: ", absl::StrJoin(calls, ", "), "\n", programs);
}

std::string PlaceTable(const std::string& title, const std::vector<PlaceUse>& places, const std::string& not_stated) {
  std::vector<std::vector<std::string>> rows = {{title, "ranks", "each", "has", ""}};
  for (const PlaceUse& place : places) {
    std::vector<std::string> ranks;
    for (const auto& [service, count] : place.ranks) {
      ranks.push_back(count == 1 ? service : absl::StrCat(count, " x ", service));
    }
    rows.push_back(
        {place.name, absl::StrJoin(ranks, ", "), Bytes(place.bytes), place.capacity == 0 ? "?" : Bytes(place.capacity),
         place.capacity == 0 ? not_stated
         : place.fits()      ? absl::StrFormat("%s, %s free", place.excess() == 0 ? "fits" : "tight",
                                               Bytes(place.capacity - place.bytes))
                             : absl::StrFormat("does not fit, %s too much", Bytes(place.bytes - place.capacity))});
  }
  return Table(rows, 2);
}

// What of the cluster has no part in the plan.
std::string UnusedOf(const RunConfig& config, const Plan& plan) {
  if (!config.has_cluster()) return "";
  std::vector<std::string> on_cpus;
  for (const ServicePlan& service : plan.services) {
    if (!service.on_gpu) on_cpus.push_back(service.service);
  }
  std::string text;
  if (!on_cpus.empty()) {
    absl::StrAppend(&text, "\nOn CPUs, as services.*.device says: ", absl::StrJoin(on_cpus, ", "), "\n");
  }
  int unused = config.cluster().num_nodes() * config.cluster().num_gpus_per_node();
  const int all = unused;
  for (const PlaceUse& device : plan.devices) unused -= device.count;
  if (!plan.devices.empty() && unused > 0) {
    absl::StrAppend(&text, "\n", unused, " of ", all, " GPUs have none of these ranks\n");
  }
  return text;
}

std::string Seconds(const std::optional<double>& seconds) {
  return seconds.has_value() ? absl::StrFormat("%.2f", *seconds) : std::string("?");
}

std::string LinkTable(const RunConfig& config, const Plan& plan) {
  std::vector<std::vector<std::string>> rows = {
      {"collectives of", "over", "one rank sends", "within a node", "seconds", "out of a node", "seconds"}};
  for (const LinkUse& link : LinksOf(config, plan)) {
    const GroupTraffic& group = link.group;
    const bool within = link.within_bytes > 0, out = link.out_bytes > 0;
    rows.push_back({link.service,
                    group.stride == 1 ? absl::StrFormat("%d ranks", group.ranks)
                                      : absl::StrFormat("%d ranks, each %d-th", group.ranks, group.stride),
                    Bytes(group.sent_bytes), within ? Bytes(group.sent_bytes) : "-",
                    within ? Seconds(link.within_seconds) : "-",
                    out ? Bytes(static_cast<int64_t>(link.out_bytes)) : "-", out ? Seconds(link.out_seconds) : "-"});
  }
  std::string text;
  if (rows.size() > 1) {
    text = absl::StrCat("\nCollectives of a step as rings carry them; seconds at the stated rates alone\n",
                        Table(rows, 2));
  }
  for (const ServicePlan& service : plan.services) {
    if (service.service != "rollout") continue;
    // While new weights are staged both versions are there: in the same memory, or the new one in the host's.
    const auto parameters = [](const TierUse& tier) {
      return tier.categories[static_cast<int>(MemoryCategory::kParameters)];
    };
    const int64_t weights = service.on_gpu ? parameters(service.use.host()) : parameters(service.use.device()) / 2;
    absl::StrAppend(&text, "\nWeight sync: each of ", service.ranks, " rollout ranks pulls ", Bytes(weights),
                    " a step, over gRPC");
    const std::optional<double> seconds = WeightSyncSeconds(config, weights);
    if (seconds != 0) absl::StrAppend(&text, ": ", Seconds(seconds), " seconds at least between nodes");
    text += '\n';
  }
  return text;
}

std::string MicroBatchLine(const RunConfig& config, const Plan& plan) {
  std::vector<std::string> services;
  for (const ServicePlan& service : plan.services) services.push_back(service.service);
  const std::string text = DescribeMicroBatches(config, services);
  return text.empty() ? "" : absl::StrCat("\nMicro-batches: ", text, "\n");
}

std::string SleepLines(const RunConfig& config, const Plan& plan) {
  if (!config.rollout().enable_sleep()) return "";
  std::string text =
      "\nThe rollout and the trainers sleep in turn (rollout.enable_sleep): each place needs room for the largest of "
      "these "
      "phases, not for all peaks at once\n";
  const bool in_turn = TrainersInTurn(config);
  for (const auto* places : {&plan.devices, &plan.hosts}) {
    for (const PlaceUse& place : *places) {
      const auto& [answers, policy, critic] = place.phases;
      absl::StrAppend(&text, "  ", place.name, ": answers ", Bytes(answers), ", ",
                      in_turn ? absl::StrCat("policy ", Bytes(policy), ", critic ", Bytes(critic))
                              : absl::StrCat("training ", Bytes(policy)),
                      "\n");
    }
  }
  return text;
}

std::string GroupLines(const RunConfig& config) {
  std::string text;
  for (const std::string& warning : PlacementWarnings(config)) absl::StrAppend(&text, "\nWarning: ", warning, "\n");
  return text;
}

std::string CacheLine(const RunConfig& config, const Plan& plan) {
  for (const ServicePlan& service : plan.services) {
    if (service.service != "rollout") continue;
    const CacheUse use = CacheUseOf(config, service);
    std::string text = absl::StrFormat(
        "\nKV cache: an engine holds %d sequences of %d tokens at once, of %d of a step that could run there", use.held,
        use.tokens, use.could_run);
    if (use.held >= use.could_run) return text + "\n";
    const std::optional<LargerCache> larger = FindLargerCache(config, plan);
    if (!larger.has_value()) return text + "; there is no room for more\n";
    return absl::StrCat(text, ";\n--set=", larger->override_text, " would hold ",
                        larger->held >= use.could_run ? "all of them" : absl::StrCat(larger->held), "\n");
  }
  return "";
}

}  // namespace

std::string PrintPlan(const RunConfig& config, const Plan& plan) {
  std::string text = absl::StrCat(MemoryTable(plan), LeaderLines(plan));
  if (!plan.devices.empty()) absl::StrAppend(&text, "\n", PlaceTable("GPUs", plan.devices, ""));
  absl::StrAppend(&text, "\n", PlaceTable("hosts", plan.hosts, "cluster.host_memory_bytes is not set"),
                  SleepLines(config, plan), GroupLines(config), UnusedOf(config, plan), MicroBatchLine(config, plan),
                  CacheLine(config, plan), LinkTable(config, plan));
  return text;
}

std::string PrintStepTime(const RunConfig& config, const StepTime& step, const GpuRates& rates) {
  std::vector<std::vector<std::string>> rows = {
      {"service", "PFLOP a rank", "reads to decode", "computing", "collectives", "seconds"}};
  bool all_known = true;
  for (const ServiceTime& time : step.services) {
    all_known = all_known && time.collectives.has_value();
    rows.push_back({time.service, absl::StrFormat("%.2f", time.flops * 1e-15),
                    time.bytes == 0 ? "-" : Bytes(static_cast<int64_t>(time.bytes)),
                    absl::StrFormat("%.2f", time.computing_seconds), Seconds(time.collectives),
                    absl::StrFormat("%.2f", time.seconds)});
  }
  std::string text = absl::StrFormat(
      "\nEstimate of what a PPO step takes at least: all sequences of %d tokens; bf16 at %.4g TFLOP/s, fp32 at %.4g, "
      "memory at %.5g GB/s\n%s",
      LongestSequence(config), rates.bf16_flops * 1e-12, rates.fp32_flops * 1e-12, rates.bytes * 1e-9, Table(rows, 1));
  absl::StrAppendFormat(&text, "At least %.2f seconds: %.2f generating, then %.2f scoring and training%s\n",
                        step.seconds(), step.generating_seconds, step.training_seconds,
                        all_known ? "" : "; without collectives over links whose rate cluster does not state");
  return text;
}

std::string PrintOffers(const std::vector<Suggestion>& offers) {
  std::vector<std::vector<std::string>> rows = {{"GPU", "nodes", "GPUs of each", "each takes", "has", "a host takes"}};
  for (const Suggestion& offer : offers) {
    const ClusterConfig& cluster = offer.config.cluster();
    rows.push_back({cluster.gpu(), absl::StrCat(cluster.num_nodes()), absl::StrCat(cluster.num_gpus_per_node()),
                    Bytes(offer.plan.devices.front().bytes), Bytes(offer.plan.devices.front().capacity),
                    Bytes(offer.plan.hosts.front().bytes)});
  }
  return absl::StrCat("The fewest GPUs on which it fits, every service on all of them\n", Table(rows, 1));
}

std::string PlanAsJson(const Plan& plan, const std::vector<RankLaunch>& launch) {
  nlohmann::json out = {{"fits", plan.fits()},
                        {"services", nlohmann::json::object()},
                        {"launch", nlohmann::json::parse(LaunchPlanAsJson(launch))}};
  for (const ServicePlan& service : plan.services) {
    nlohmann::json& entry = out["services"][service.service];
    entry["ranks"] = service.ranks;
    entry["device_outside"] = service.outside_device;
    entry["host_outside"] = service.outside_host;
    for (int tier = 0; tier < kNumMemoryTiers; ++tier) {
      nlohmann::json& use = entry[std::string(MemoryTierName(static_cast<MemoryTier>(tier)))];
      use["total"] = service.use.tiers[tier].total;
      for (int i = 0; i < kNumMemoryCategories; ++i) {
        use[std::string(MemoryCategoryName(static_cast<MemoryCategory>(i)))] = service.use.tiers[tier].categories[i];
      }
    }
  }
  for (const LeaderPlan& leader : plan.leaders) {
    out["leaders"][leader.service] = {{"calls", leader.calls}, {"programs", leader.programs}};
  }
  return out.dump(2) + "\n";
}

std::string PrintSuggestions(const std::vector<Suggestion>& suggestions) {
  std::string text;
  for (const Suggestion& suggestion : suggestions) {
    std::vector<std::string> places;
    for (const PlaceUse& device : suggestion.plan.devices) places.push_back(Bytes(device.bytes) + " each");
    for (const PlaceUse& host : suggestion.plan.hosts) {
      places.push_back(
          absl::StrCat("a host ", Bytes(host.bytes), host.capacity == 0 ? ", whose size is not stated" : ""));
    }
    absl::StrAppend(&text, "  ", absl::StrJoin(suggestion.overrides, " "), "  (", absl::StrJoin(places, ", "), ")\n");
  }
  return text;
}

}  // namespace quartet
