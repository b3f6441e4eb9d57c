#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/config/checks/checks.h"
#include "core/config/conditions.h"
#include "core/config/gpus.h"
#include "core/config/placement.h"
#include "core/config/services.h"

namespace quartet {
namespace {

// What says nothing of a cluster whose GPUs no service uses, or of one node.
absl::Status CheckClusterEffects(const RunConfig& c) {
  const ClusterConfig& h = c.cluster();
  bool any_gpu = false;
  for (const std::string& service : kServiceNames) any_gpu = any_gpu || PlacementOf(c, service).device() == "cuda";
  if (!any_gpu) {
    constexpr char kNoGpu[] =
        "no service has device \"cuda\"; set services.rollout.device, and those of the other services that run on GPUs";
    if (!h.gpu().empty()) return NoEffect("cluster.gpu", kNoGpu);
    if (h.has_gpu_memory_bytes()) return NoEffect("cluster.gpu_memory_bytes", kNoGpu);
    if (h.num_gpus_per_node() != 8) return NoEffect("cluster.num_gpus_per_node", kNoGpu);
  }
  return absl::OkStatus();
}

absl::Status CheckCluster(const ClusterConfig& h) {
  QUARTET_RETURN_IF_ERROR(Integer("cluster.num_gpus_per_node", h.num_gpus_per_node(), 1, kMaxRanks / h.num_nodes()));
  if (!h.gpu().empty()) {
    const Gpu* gpu = FindGpu(h.gpu());
    if (gpu == nullptr && absl::StartsWithIgnoreCase(h.gpu(), "MI")) {
      return Bad("cluster.gpu", absl::StrCat("\"", h.gpu(), "\""),
                 absl::StrCat("GPUs of AMD are not supported; allowed: ", KnownGpuNames()));
    }
    if (gpu == nullptr) {
      return Bad("cluster.gpu", absl::StrCat("\"", h.gpu(), "\""),
                 absl::StrCat("allowed: ", KnownGpuNames(), "; or set cluster.gpu_memory_bytes"));
    }
    if (h.has_gpu_memory_bytes() && h.gpu_memory_bytes() != gpu->memory_bytes) {
      return Bad(
          "cluster.gpu_memory_bytes", absl::StrCat(h.gpu_memory_bytes()),
          absl::StrCat("cluster.gpu is \"", h.gpu(), "\", which has ", gpu->memory_bytes, "; set only one of the two"));
    }
  }
  return absl::OkStatus();
}

// That `service`, with device "cuda", has a GPU for each rank.
absl::Status CheckGpus(const RunConfig& c, const std::string& service) {
  const ServicePlacement& s = PlacementOf(c, service);
  if (s.device() != "cuda") return absl::OkStatus();
  const int64_t all = int64_t{c.cluster().num_nodes()} * c.cluster().num_gpus_per_node();
  if (s.ranks() > all) {
    return Bad(absl::StrCat("services.", service, ".ranks"), absl::StrCat(s.ranks()),
               absl::StrCat("each rank needs a GPU, and the cluster has ", c.cluster().num_nodes(), " x ",
                            c.cluster().num_gpus_per_node(), " = ", all));
  }
  return absl::OkStatus();
}

// What a service says of its nodes and GPUs, and that it has a rank for each.
absl::Status CheckAskedFor(const RunConfig& c, const std::string& service) {
  const ServicePlacement& s = PlacementOf(c, service);
  const auto field = [&service](absl::string_view leaf) { return absl::StrCat("services.", service, ".", leaf); };
  if (s.device() != "cuda") {
    const std::string why = absl::StrCat(field("device"), " is \"", s.device(), "\"");
    if (s.has_num_gpus_per_node()) return NoEffect(field("num_gpus_per_node"), why);
    if (s.has_gpu_share()) return NoEffect(field("gpu_share"), why);
  } else if (s.has_num_nodes() && !s.has_num_gpus_per_node()) {
    return NoEffect(field("num_nodes"), absl::StrCat(field("num_gpus_per_node"), " is not set"));
  }
  if (!s.has_num_nodes() && !s.has_num_gpus_per_node()) return absl::OkStatus();
  const std::string said = field(s.has_num_gpus_per_node() ? "num_gpus_per_node" : "num_nodes");
  if (!c.has_cluster()) {
    return Missing("cluster", absl::StrCat(said, " is of its nodes: say at least cluster.num_gpus_per_node"));
  }
  if (s.num_gpus_per_node() > c.cluster().num_gpus_per_node()) {
    return Bad(field("num_gpus_per_node"), absl::StrCat(s.num_gpus_per_node()),
               absl::StrCat("cluster.num_gpus_per_node is ", c.cluster().num_gpus_per_node()));
  }
  if (s.num_nodes() > c.cluster().num_nodes()) {
    return Bad(field("num_nodes"), absl::StrCat(s.num_nodes()),
               absl::StrCat("cluster.num_nodes is ", c.cluster().num_nodes()));
  }
  if (s.has_num_gpus_per_node() ? s.ranks() != RanksAskedFor(s) : s.ranks() % s.num_nodes() != 0) {
    return Bad(field("ranks"), absl::StrCat(s.ranks()),
               s.has_num_gpus_per_node()
                   ? absl::StrCat("it has ", RanksAskedFor(s), " GPUs (num_nodes * num_gpus_per_node), one a rank")
                   : absl::StrCat("its ", s.num_nodes(), " nodes (num_nodes) have as many ranks each"));
  }
  for (const GpuPlacement& p : c.placement()) {
    if (p.service() != service) continue;
    return Bad(said, absl::StrCat(s.has_num_gpus_per_node() ? s.num_gpus_per_node() : s.num_nodes()),
               "an entry of placement names its GPUs; give one of the two");
  }
  return absl::OkStatus();
}

absl::Status CheckNodes(const ClusterConfig& h) {
  if (h.node_names().empty()) return absl::OkStatus();
  if (h.node_names_size() != h.num_nodes()) {
    return Bad("cluster.node_names", absl::StrJoin(h.node_names(), ","),
               absl::StrCat("they are ", h.node_names_size(), ", and cluster.num_nodes is ", h.num_nodes()));
  }
  std::set<std::string> names;
  for (const std::string& name : h.node_names()) {
    if (name.empty() || !names.insert(name).second) {
      return Bad("cluster.node_names", absl::StrCat("\"", name, "\""), "each is another host");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPlacements(const RunConfig& c) {
  for (const std::string& service : kServiceNames) QUARTET_RETURN_IF_ERROR(CheckAskedFor(c, service));
  if (!c.has_cluster()) {
    return c.placement().empty() ? absl::OkStatus() : NoEffect("placement", "cluster is not set");
  }
  QUARTET_RETURN_IF_ERROR(CheckCluster(c.cluster()));
  QUARTET_RETURN_IF_ERROR(CheckNodes(c.cluster()));
  std::set<std::string> services;
  for (int i = 0; i < c.placement_size(); ++i) {
    const GpuPlacement& p = c.placement(i);
    const auto field = [i](absl::string_view leaf) { return absl::StrCat("placement[", i, "].", leaf); };
    QUARTET_RETURN_IF_ERROR(OneOf(field("service"), p.service(), kServiceNames));
    if (!services.insert(p.service()).second) {
      return Bad(field("service"), absl::StrCat("\"", p.service(), "\""), "it has an entry already");
    }
    const ServicePlacement& s = PlacementOf(c, p.service());
    if (p.service() == "critic_trainer" && s.device().empty()) {
      return NoEffect(absl::StrCat("placement[", i, "]"), kNoCritic);
    }
    if (s.device() != "cuda") {
      return NoEffect(absl::StrCat("placement[", i, "]"),
                      absl::StrCat("services.", p.service(), ".device is \"", s.device(), "\""));
    }
    std::set<int> nodes, gpus;
    for (const int node : p.nodes()) {
      QUARTET_RETURN_IF_ERROR(Integer(field("nodes"), node, 0, c.cluster().num_nodes() - 1));
      if (!nodes.insert(node).second) return Bad(field("nodes"), absl::StrCat(node), "it is named twice");
    }
    for (const int gpu : p.gpus()) {
      QUARTET_RETURN_IF_ERROR(Integer(field("gpus"), gpu, 0, c.cluster().num_gpus_per_node() - 1));
      if (!gpus.insert(gpu).second) return Bad(field("gpus"), absl::StrCat(gpu), "it is named twice");
    }
    if (s.ranks() != PlacedGpus(p, c.cluster())) {
      return Bad(absl::StrCat("services.", p.service(), ".ranks"), absl::StrCat(s.ranks()),
                 absl::StrCat("placement[", i, "] gives it ", PlacedGpus(p, c.cluster()), " GPUs, one a rank"));
    }
  }
  for (const std::string& service : kServiceNames) QUARTET_RETURN_IF_ERROR(CheckGpus(c, service));
  QUARTET_RETURN_IF_ERROR(PlaceRanks(c).status());
  return CheckClusterEffects(c);
}

}  // namespace quartet
