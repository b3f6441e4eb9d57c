#include "core/clients/handshake.h"

#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/config/batches/call_sizes.h"
#include "core/config/field_paths.h"
#include "core/config/placement.h"
#include "core/config/services.h"
#include "core/field_rules/field_rules.h"
#include "core/service/reported_fields.h"
#include "core/version/version.h"

namespace quartet {
namespace {

std::string PlaceOf(const ServiceClient& client) { return absl::StrCat(client.service(), " at ", client.address()); }

// Who is there, in this language.
absl::StatusOr<ServiceInfo> Meet(ServiceClient& client, const OnLoading& on_loading) {
  QUARTET_ASSIGN_OR_RETURN(ServiceInfo info, client.AwaitInfo([&](const std::string& detail) {
    on_loading(absl::StrCat("waiting for the ", PlaceOf(client), ", which is loading its model"), detail);
  }));
  if (info.service() != client.service()) {
    return absl::FailedPreconditionError(absl::StrCat("at ", client.address(), " is the service \"", info.service(),
                                                      "\", not \"", client.service(), "\""));
  }
  const int lowest = info.min_protocol_version() > 0 ? info.min_protocol_version() : info.protocol_version();
  QUARTET_RETURN_IF_ERROR(CheckProtocol(PlaceOf(client), info.version(), lowest, info.protocol_version()));
  return info;
}

// Whether two values of a field are one folder or file under different names.
bool AreOnePath(const std::string& a, const std::string& b) {
  if (!absl::StartsWith(a, "\"/") || !absl::StartsWith(b, "\"/")) return false;
  std::string path_a, path_b;
  if (!absl::CUnescape(a.substr(1, a.size() - 2), &path_a) || !absl::CUnescape(b.substr(1, b.size() - 2), &path_b)) {
    return false;
  }
  std::error_code error;
  return std::filesystem::equivalent(path_a, path_b, error);
}

// The rollout's KV cache has another default where its GPUs are taken to be its own (rollout.gpu_memory_utilization),
// which is seen otherwise by a service that is started alone and by a program that drives few others.
bool AreDefaultsOfACache(const std::string& field, const std::string& ours, const std::string& theirs) {
  RolloutConfig plain;
  FillRules(&plain);
  const auto one_is = [&](const std::string& value) {
    return (ours == value && theirs.empty()) || (theirs == value && ours.empty());
  };
  return (field == "rollout.kv_cache_bytes" && one_is(absl::StrCat(plain.kv_cache_bytes()))) ||
         (field == "rollout.gpu_memory_utilization" && one_is(absl::StrCat(kUtilizationOfOwnGpus)));
}

// "run_dir is "/a" there and "/b" here", one for each field of the service that differs from the run's.
std::vector<std::string> Differences(const ServiceInfo& info, const RunConfig& config) {
  std::map<std::string, std::string> here = ReportedFields(config, info.service());
  std::map<std::string, std::string> there(info.configuration().begin(), info.configuration().end());
  std::map<std::string, std::string> all = here;
  all.insert(there.begin(), there.end());
  std::vector<std::string> differences;
  for (const auto& [field, value] : all) {
    if (config.train().load_checkpoint() && absl::EndsWith(field, ".load_checkpoint")) continue;
    const std::string &ours = here[field], &theirs = there[field];
    if (ours == theirs || AreOnePath(ours, theirs)) continue;
    // A file that is not seen on both hosts, or whose hash an earlier build does not tell.
    if (IsFileHash(field) && (ours.empty() || theirs.empty())) continue;
    // A reference that this run does not ask for, as an evaluation of what a run trains.
    if (ours.empty() && info.service() == "scorer" &&
        (absl::StartsWith(field, "reference.") || field == "actor.micro_rollout_batch_size")) {
      continue;
    }
    if (AreDefaultsOfACache(field, ours, theirs)) continue;
    // A later build's own, which the run cannot have set.
    if (!IsFileHash(field) && !IsFieldPath(field, *RunConfig::descriptor())) continue;
    differences.push_back(absl::StrCat(field, " is ", theirs.empty() ? "not set" : theirs, " there and ",
                                       ours.empty() ? "not set" : ours, " here"));
  }
  return differences;
}

// Of services that are there.
absl::Status CheckConfigurations(const std::vector<std::pair<ServiceClient*, ServiceInfo*>>& services,
                                 const RunConfig& config) {
  std::vector<std::string> others;
  for (const auto& [client, info] : services) {
    const std::vector<std::string> differences = Differences(*info, config);
    if (!differences.empty()) others.push_back(absl::StrCat(PlaceOf(*client), ": ", absl::StrJoin(differences, ", ")));
  }
  if (others.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "services were started with another configuration than this run's. ", absl::StrJoin(others, "; "),
      ". End them and start them again with the --config and --set of the orchestrator, or all services by --launch"));
}

// Of the vocabulary of a service with one model.
int32_t RowsOf(const ServiceInfo& info) {
  const auto found = info.vocab_size().find("model");
  return found == info.vocab_size().end() ? 0 : found->second;
}

// That the service can do what this run will ask for.
absl::Status CheckFits(const ServiceClient& client, const ServiceInfo& info, const RunConfig& config,
                       int32_t tokenizer_vocab_size, int64_t longest_sequence) {
  for (const auto& [role, size] : info.vocab_size()) {
    if (tokenizer_vocab_size > size) {
      return absl::InvalidArgumentError(absl::StrCat(PlaceOf(client), ": its ", role, " has a vocabulary of ", size,
                                                     " tokens but the tokenizer has ", tokenizer_vocab_size,
                                                     ". Give each model the tokenizer that it was trained with"));
    }
  }
  for (const auto& [role, size] : info.tokenizer_vocab_size()) {
    if (size != tokenizer_vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(PlaceOf(client), ": its ", role, " takes ", size,
                                                     " token ids but the tokenizer has ", tokenizer_vocab_size,
                                                     ". All models of a run must share one tokenizer"));
    }
  }
  if (info.max_model_len() > 0 && longest_sequence > info.max_model_len()) {
    return absl::InvalidArgumentError(
        absl::StrCat(PlaceOf(client), " takes sequences of at most ", info.max_model_len(),
                     " tokens, but prompt and answer together can have ", longest_sequence));
  }
  const auto is = [&info](const char* state) {
    const auto found = info.metrics().find(state);
    return found != info.metrics().end() && found->second != 0;
  };
  // A run that has ended amid a step may have left it so, and this one wakes it, gives it weights and resumes it.
  if (!is("rollout/paused") || config.rollout().enable_sleep()) return absl::OkStatus();
  if (is("rollout/weights_released") && info.policy_version() > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(PlaceOf(client),
                     " is paused, and its weights are released. A run with rollout.enable_sleep that goes on brings "
                     "them back by itself; of one that has ended, continue it, or start the rollout again"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(PlaceOf(client),
                   " is paused, and would answer nothing. Rollout.Resume ends that, after WakeUp where "
                   "it sleeps; a run with rollout.enable_sleep that goes on does both by itself"));
}

}  // namespace

absl::Status CheckCpuKernels(const std::vector<const ServiceInfo*>& services) {
  std::map<std::string, std::string> first;  // a rank of each kind
  for (const ServiceInfo* service : services) {
    for (const RankInfo& rank : service->ranks()) {
      if (rank.cpu_kernels().empty()) continue;
      first.emplace(rank.cpu_kernels(), absl::StrCat("rank ", rank.rank(), " of the ", service->service()));
    }
  }
  if (first.size() < 2) return absl::OkStatus();
  std::vector<std::string> kinds;
  for (const auto& [kernels, rank] : first) kinds.push_back(absl::StrCat(rank, " by ", kernels));
  return absl::FailedPreconditionError(absl::StrCat(
      "ranks multiply bf16 matrices in different ways, so that their log-probabilities differ: ",
      absl::StrJoin(kinds, ", "),
      ". Start all services on CPUs of one kind, or each with QUARTET_CPU_KERNELS=fp32 in its environment"));
}

absl::StatusOr<ServiceInfo> CheckService(ServiceClient& client, const RunConfig& config, int32_t tokenizer_vocab_size,
                                         int64_t longest_sequence, const OnLoading& on_loading) {
  QUARTET_ASSIGN_OR_RETURN(ServiceInfo info, Meet(client, on_loading));
  QUARTET_RETURN_IF_ERROR(CheckConfigurations({{&client, &info}}, config));
  QUARTET_RETURN_IF_ERROR(CheckCpuKernels({&info}));
  QUARTET_RETURN_IF_ERROR(CheckFits(client, info, config, tokenizer_vocab_size, longest_sequence));
  return info;
}

absl::StatusOr<Handshake> ShakeHands(Services& services, const RunConfig& config, int32_t tokenizer_vocab_size,
                                     const OnLoading& on_loading) {
  const int64_t longest = LongestSequence(config);
  Handshake handshake;
  std::vector<std::pair<ServiceClient*, ServiceInfo*>> peers = {
      {services.rollout.get(), &handshake.rollout}, {services.policy_trainer.get(), &handshake.policy_trainer}};
  if (services.critic_trainer != nullptr) {
    peers.emplace_back(services.critic_trainer.get(), &handshake.critic_trainer.emplace());
  }
  peers.emplace_back(services.scorer.get(), &handshake.scorer);
  for (const auto& [client, info] : peers) {
    QUARTET_ASSIGN_OR_RETURN(*info, Meet(*client, on_loading));
  }
  QUARTET_RETURN_IF_ERROR(CheckConfigurations(peers, config));
  std::vector<const ServiceInfo*> infos;
  for (const auto& [client, info] : peers) infos.push_back(info);
  QUARTET_RETURN_IF_ERROR(CheckCpuKernels(infos));
  for (const auto& [client, info] : peers) {
    QUARTET_RETURN_IF_ERROR(CheckFits(*client, *info, config, tokenizer_vocab_size, longest));
  }
  // Elsewhere models may be padded otherwise; these two share weights.
  const int32_t rows = RowsOf(handshake.rollout), trained = RowsOf(handshake.policy_trainer);
  if (rows != trained) {
    return absl::InvalidArgumentError(absl::StrCat(PlaceOf(*services.rollout), ": its model has a vocabulary of ", rows,
                                                   " rows and the policy trainer's one of ", trained,
                                                   "; they must be equal, since it takes the policy's weights. "
                                                   "Start the rollout with the actor's model (rollout.pretrain)"));
  }
  return handshake;
}

}  // namespace quartet
