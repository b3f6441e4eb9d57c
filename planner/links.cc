#include "planner/links.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "core/base/logging.h"
#include "core/config/placement.h"

namespace quartet {
namespace {

std::optional<double> Seconds(double bytes, double gbps) {
  if (gbps == 0) return std::nullopt;
  return bytes * 8e-9 / gbps;
}

}  // namespace

std::optional<double> LinkUse::seconds() const {
  if ((within_bytes > 0 && !within_seconds.has_value()) || (out_bytes > 0 && !out_seconds.has_value())) {
    return std::nullopt;
  }
  return std::max(within_bytes > 0 ? *within_seconds : 0, out_bytes > 0 ? *out_seconds : 0);
}

std::vector<LinkUse> LinksOf(const RunConfig& config, const Plan& plan) {
  std::vector<LinkUse> links;
  const auto placed = PlaceRanks(config);
  QUARTET_CHECK(placed.ok()) << placed.status();  // as the plan's
  for (const ServicePlan& service : plan.services) {
    const std::vector<RankPlace>& places = placed->at(service.service);
    for (const GroupTraffic& group : service.use.traffic) {
      int rings_out = 0;  // of the first node
      bool within = false;
      const int first_node = places.front().node;
      for (int begin = 0; begin < static_cast<int>(places.size()); ++begin) {
        if (begin % (group.stride * group.ranks) >= group.stride) continue;  // the first member of each ring
        for (int i = 0; i < group.ranks; ++i) {
          const size_t from = begin + i * group.stride;
          const size_t to = begin + (i + 1) % group.ranks * group.stride;
          if (from >= places.size() || to >= places.size()) continue;
          if (places[from].node == places[to].node) {
            within = true;
          } else if (places[from].node == first_node) {
            ++rings_out;
          }
        }
      }
      const auto sent = static_cast<double>(group.sent_bytes);
      LinkUse& link = links.emplace_back();
      link.service = service.service;
      link.group = group;
      link.within_bytes = within ? sent : 0;
      link.out_bytes = sent * rings_out;
      link.within_seconds = Seconds(link.within_bytes, config.cluster().intra_node_gbps());
      link.out_seconds = Seconds(link.out_bytes, config.cluster().inter_node_gbps());
    }
  }
  return links;
}

std::optional<double> WeightSyncSeconds(const RunConfig& config, int64_t bytes) {
  const auto placed = PlaceRanks(config);
  if (!placed.ok() || !placed->contains("rollout") || !placed->contains("policy_trainer")) return 0;
  std::map<int, double> pulling, serving;  // ranks by node
  for (const RankPlace& place : placed->at("rollout")) ++pulling[place.node];
  for (const RankPlace& place : placed->at("policy_trainer")) ++serving[place.node];
  const auto all_pulling = static_cast<double>(placed->at("rollout").size());
  const auto all_serving = static_cast<double>(placed->at("policy_trainer").size());
  double most = 0;  // models that go in or out of a node
  for (const auto& [node, ranks] : pulling) most = std::max(most, ranks * (1 - serving[node] / all_serving));
  for (const auto& [node, ranks] : serving) most = std::max(most, ranks / all_serving * (all_pulling - pulling[node]));
  return most == 0 ? 0 : Seconds(most * static_cast<double>(bytes), config.cluster().inter_node_gbps());
}

}  // namespace quartet
