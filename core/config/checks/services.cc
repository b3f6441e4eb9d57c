#include "core/config/services.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/config/checks/checks.h"
#include "core/config/conditions.h"
#include "core/network/address.h"

namespace quartet {
namespace {

absl::Status CheckPlacement(const std::string& name, const ServicePlacement& p) {
  const auto field = [&name](absl::string_view leaf) { return absl::StrCat("services.", name, ".", leaf); };
  QUARTET_RETURN_IF_ERROR(Prefixed(field("listen"), ParseHostPort(p.listen()).status()));
  QUARTET_RETURN_IF_ERROR(Integer(field("max_call_bytes"), p.max_call_bytes(), 1, p.max_calls_bytes()));
  if (p.collective_backend() != "auto" && p.device() != "cpu") {
    return NoEffect(field("collective_backend"), absl::StrCat("ranks on device \"", p.device(), "\" use NCCL"));
  }
  if (p.collective_backend() != "auto" && p.ranks() == 1) {
    return NoEffect(field("collective_backend"),
                    absl::StrCat(field("ranks"), " is 1, and one rank has no collectives"));
  }
  return absl::OkStatus();
}

// Which services hold anything in host memory beside their device: what is offloaded, trainers the average of the
// weights, a policy trainer on CUDA also the weights that it publishes, a rollout there those that are staged.
absl::Status CheckHostBudgets(const RunConfig& c) {
  const auto check = [](const std::string& name, const ServicePlacement& p, bool holds) {
    if (p.host_memory_budget() == 0 || holds) return absl::OkStatus();
    return NoEffect(absl::StrCat("services.", name, ".host_memory_budget"),
                    absl::StrCat("this service holds nothing in host memory beside its device (\"", p.device(),
                                 "\"); use device_memory_budget"));
  };
  const auto offloads = [](const TrainerConfig& t) {
    return t.adam_offload() || t.sleep_offload() || t.activation_offload() || t.ema_decay() != 0;
  };
  QUARTET_RETURN_IF_ERROR(check("rollout", c.services().rollout(), c.services().rollout().device() == "cuda"));
  QUARTET_RETURN_IF_ERROR(check("policy_trainer", c.services().policy_trainer(),
                                c.services().policy_trainer().device() == "cuda" || offloads(c.actor())));
  QUARTET_RETURN_IF_ERROR(check("critic_trainer", c.services().critic_trainer(), offloads(c.critic())));
  return check("scorer", c.services().scorer(), std::ranges::any_of(ScoringModels(c), &ScoringModel::offload_param));
}

absl::Status CheckUtilization(const RunConfig& c) {
  const RolloutConfig& r = c.rollout();
  if (!r.has_gpu_memory_utilization()) return absl::OkStatus();
  if (c.services().rollout().device() != "cuda") {
    return NoEffect("rollout.gpu_memory_utilization",
                    absl::StrCat("services.rollout.device is \"", c.services().rollout().device(),
                                 "\"; use rollout.kv_cache_bytes"));
  }
  return absl::OkStatus();
}

// Where no forward is recorded.
absl::Status CheckEager(const RunConfig& c) {
  const RolloutConfig& r = c.rollout();
  if (!r.enforce_eager()) return absl::OkStatus();
  const std::string& device = c.services().rollout().device();
  const auto no_effect = [](const std::string& why) {
    return NoEffect("rollout.enforce_eager", absl::StrCat(why, ", where no CUDA graphs are recorded"));
  };
  if (device != "cuda") return no_effect(absl::StrCat("services.rollout.device is \"", device, "\""));
  if (r.dtype() != "bf16") return no_effect(absl::StrCat("rollout.dtype is \"", r.dtype(), "\""));
  if (r.zero_stage() != 0) return no_effect(absl::StrCat("rollout.zero_stage is ", r.zero_stage()));
  if (r.tensor_parallel_size() > 1) {
    return no_effect(absl::StrCat("rollout.tensor_parallel_size is ", r.tensor_parallel_size()));
  }
  return absl::OkStatus();
}

// A scorer of rules alone holds no tensor.
absl::Status CheckScorer(const RunConfig& c) {
  if (!ScoringModels(c).empty()) return absl::OkStatus();
  constexpr char kNoModel[] =
      "the scorer has no model: there is no reference in it (algorithm.kl.init_kl_coef is 0, or actor.lora set without "
      "reference.pretrain), and no reward.source is a model";
  const ServicePlacement& s = c.services().scorer();
  if (s.device() != "cpu") return NoEffect("services.scorer.device", kNoModel);
  if (s.device_memory_budget() != 0) return NoEffect("services.scorer.device_memory_budget", kNoModel);
  return absl::OkStatus();
}

bool HasMetrics(const RunConfig& c) {
  return std::any_of(kServiceNames.begin(), kServiceNames.end(),
                     [&](const std::string& service) { return !PlacementOf(c, service).metrics_listen().empty(); });
}

absl::Status CheckMonitor(const RunConfig& c) {
  const MonitorConfig& m = c.monitor();
  if (!m.listen().empty()) QUARTET_RETURN_IF_ERROR(HttpAddress("monitor.listen", m.listen(), "monitor", m));
  for (const std::string& service : kServiceNames) {
    const std::string& listen = PlacementOf(c, service).metrics_listen();
    if (listen.empty()) continue;
    QUARTET_RETURN_IF_ERROR(HttpAddress(absl::StrCat("services.", service, ".metrics_listen"), listen, "monitor", m));
  }
  if (!m.listen().empty() || HasMetrics(c)) return absl::OkStatus();
  constexpr char kNoServer[] = "nothing is served: set monitor.listen, or metrics_listen of a service";
  if (!m.api_key_file().empty()) return NoEffect("monitor.api_key_file", kNoServer);
  if (!m.cert_file().empty()) return NoEffect("monitor.cert_file", kNoServer);
  if (!m.key_file().empty()) return NoEffect("monitor.key_file", kNoServer);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckServices(const RunConfig& c) {
  const bool monitored = !c.monitor().listen().empty() || HasMetrics(c);
  const bool keyless_http = (c.rollout().has_http() && c.rollout().http().api_key_file().empty()) ||
                            (monitored && c.monitor().api_key_file().empty());
  if (c.services().allow_other_users() && !c.tls().ca_file().empty() && !keyless_http) {
    return NoEffect("services.allow_other_users", "tls says who may call");
  }
  for (const std::string& service : kServiceNames) {
    if (service == "critic_trainer" && !UsesCritic(c)) continue;
    QUARTET_RETURN_IF_ERROR(CheckPlacement(service, PlacementOf(c, service)));
  }
  for (const ScoringModel& model : ScoringModels(c)) {
    if (!model.offload_param || model.zero_stage == 3) continue;
    return Bad(model.section + ".offload_param", "true",
               absl::StrCat(model.section, ".zero_stage is ", model.zero_stage,
                            ", where all parameters stay on the device; it needs 3"));
  }
  QUARTET_RETURN_IF_ERROR(CheckMonitor(c));
  return CheckHostBudgets(c);
}

absl::Status CheckDevices(const RunConfig& c) {
  QUARTET_RETURN_IF_ERROR(CheckUtilization(c));
  QUARTET_RETURN_IF_ERROR(CheckEager(c));
  return CheckScorer(c);
}

absl::Status CheckTls(const TlsConfig& tls) {
  const int files = !tls.ca_file().empty() + !tls.cert_file().empty() + !tls.key_file().empty();
  if (files != 0 && files != 3) {
    return absl::InvalidArgumentError(absl::StrCat("tls: ",
                                                   tls.ca_file().empty()     ? "ca_file"
                                                   : tls.cert_file().empty() ? "cert_file"
                                                                             : "key_file",
                                                   " is not set; set all of ca_file, cert_file and key_file, or none"));
  }
  return absl::OkStatus();
}

}  // namespace quartet
