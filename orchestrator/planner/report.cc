#include "orchestrator/planner/report.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace quartet {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kGiB = 1 << 30;

std::string Bytes(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  return value >= kGiB ? absl::StrFormat("%.2f GiB", value / kGiB) : absl::StrFormat("%.1f MiB", value / kMiB);
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
         : place.fits()      ? absl::StrFormat("fits, %s free", Bytes(place.capacity - place.bytes))
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

std::string LinkTable(const RunConfig& config, const Plan& plan) {
  const ClusterConfig& cluster = config.cluster();
  std::vector<std::vector<std::string>> rows = {
      {"collectives of", "over", "one rank sends", "within a node", "seconds", "out of a node", "seconds"}};
  const auto seconds = [](double bytes, double gbps) {
    return gbps > 0 ? absl::StrFormat("%.2f", bytes * 8e-9 / gbps) : std::string("?");
  };
  for (const ServicePlan& service : plan.services) {
    const auto places = PlacesOf(config, service.service);
    for (const GroupTraffic& group : service.use.traffic) {
      // A ring in the order of the ranks: every rank sends to its neighbour. Links within a node carry one rank's part;
      // what leaves a node, over all rings that have a member there, is one rank's part for each ring.
      int rings_out = 0;  // of the first node
      bool within = false;
      const int first_node = places.front().first;
      for (int begin = 0; begin < static_cast<int>(places.size()); ++begin) {
        if (begin % (group.stride * group.ranks) >= group.stride) continue;  // the first member of each ring
        for (int i = 0; i < group.ranks; ++i) {
          const size_t from = begin + i * group.stride;
          const size_t to = begin + (i + 1) % group.ranks * group.stride;
          if (from >= places.size() || to >= places.size()) continue;
          if (places[from].first == places[to].first) {
            within = true;
          } else if (places[from].first == first_node) {
            ++rings_out;
          }
        }
      }
      const auto sent = static_cast<double>(group.sent_bytes);
      const double out = sent * rings_out;
      rows.push_back({service.service,
                      group.stride == 1 ? absl::StrFormat("%d ranks", group.ranks)
                                        : absl::StrFormat("%d ranks, each %d-th", group.ranks, group.stride),
                      Bytes(group.sent_bytes), within ? Bytes(group.sent_bytes) : "-",
                      within ? seconds(sent, cluster.intra_node_gbps()) : "-",
                      rings_out > 0 ? Bytes(static_cast<int64_t>(out)) : "-",
                      rings_out > 0 ? seconds(out, cluster.inter_node_gbps()) : "-"});
    }
  }
  std::string text;
  if (rows.size() > 1) {
    text = absl::StrCat("\nCollectives of a PPO step as rings carry them; seconds at the stated rates alone\n",
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
                    " a step, over gRPC\n");
  }
  return text;
}

}  // namespace

std::string PrintPlan(const RunConfig& config, const Plan& plan) {
  std::string text = MemoryTable(plan);
  if (!plan.devices.empty()) absl::StrAppend(&text, "\n", PlaceTable("GPUs", plan.devices, ""));
  absl::StrAppend(&text, "\n", PlaceTable("hosts", plan.hosts, "cluster.host_memory_bytes is not set"),
                  UnusedOf(config, plan), LinkTable(config, plan));
  return text;
}

std::string PlanAsJson(const Plan& plan) {
  nlohmann::json out = {{"fits", plan.fits()}, {"services", nlohmann::json::object()}};
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
  return out.dump(2) + "\n";
}

std::string PrintSuggestions(const std::vector<Suggestion>& suggestions) {
  std::string text;
  for (const Suggestion& suggestion : suggestions) {
    std::vector<std::string> places;
    for (const PlaceUse& device : suggestion.plan.devices) places.push_back(Bytes(device.bytes));
    if (places.empty()) {
      for (const PlaceUse& host : suggestion.plan.hosts) places.push_back(Bytes(host.bytes));
    }
    absl::StrAppend(&text, "  ", absl::StrJoin(suggestion.overrides, " "), "  (", absl::StrJoin(places, ", "),
                    " each)\n");
  }
  return text;
}

}  // namespace quartet
