#include "orchestrator/checks/input_check.h"

#include <dlfcn.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/files.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/state_folder.h"
#include "core/model/model_config.h"
#include "core/model/parameter_layout.h"
#include "core/model/tensor_parallel.h"
#include "core/safetensors/reader.h"
#include "core/service/wire/credentials.h"
#include "core/training/engine/model_folder_check.h"

namespace quartet {
namespace {

#ifdef QUARTET_CUDA
constexpr bool kBuiltForCuda = true;
#else
constexpr bool kBuiltForCuda = false;
#endif

absl::Status Of(const std::string& option, const absl::Status& status) {
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(option, ": ", status.message()));
}

absl::Status CheckFolder(const std::string& option, const std::string& folder) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(option, ": the folder ", folder,
                   " does not exist; names of a model hub are not resolved: download the model and ",
                   "give its folder (relative paths start at ", ResolveUserPath("."), ")"));
}

// A model that a service loads.
struct ModelUse {
  std::string option;
  std::string folder;
  HeadKind head;
  bool has_head;  // else one that is missing is drawn
  std::string length_option;
  int64_t length;
};

std::vector<ModelUse> ModelsOf(const RunConfig& c, Program program) {
  std::vector<ModelUse> models = {
      {"actor.pretrain", c.actor().pretrain(), HeadKind::kVocabulary, true, "actor.max_len", c.actor().max_len()}};
  if (program == Program::kSft) return models;
  if (UsesCritic(c))
    models.push_back(
        {"critic.pretrain", c.critic().pretrain(), HeadKind::kScalar, false, "critic.max_len", c.critic().max_len()});
  models.push_back({"rollout.pretrain", c.rollout().pretrain(), HeadKind::kVocabulary, true, "rollout.max_model_len",
                    c.rollout().max_model_len()});
  if (UsesReference(c)) {
    models.push_back({"reference.pretrain", c.reference().pretrain(), HeadKind::kVocabulary, true, "actor.max_len",
                      c.actor().max_len()});
  }
  for (int i = 0; i < c.reward().source_size(); ++i) {
    if (c.reward().source(i).model().empty()) continue;
    models.push_back({absl::StrCat("reward.source[", i, "].model"), c.reward().source(i).model(), HeadKind::kScalar,
                      true, "actor.max_len", c.actor().max_len()});
  }
  return models;
}

absl::Status CheckWeights(const ModelUse& use, const ModelConfig& model) {
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader, CheckpointReader::Open(use.folder));
  for (const ParameterGroup& group : MakeParameterLayout(model, use.head).groups) {
    for (const ParameterSpec& parameter : group.parameters) {
      const auto found = reader->tensors().find(parameter.name);
      const bool is_score = parameter.name == "score.weight";
      if (found == reader->tensors().end()) {
        if (is_score && !use.has_head) continue;
        return absl::NotFoundError(absl::StrCat(
            "the weights in ", use.folder, " have no tensor ", parameter.name,
            is_score ? "; a reward model has a scalar head: AutoModelForSequenceClassification with num_labels=1"
                     : ""));
      }
      if (found->second.shape == parameter.shape) continue;
      return absl::InvalidArgumentError(absl::StrCat(reader->files()[found->second.file], ": tensor ", parameter.name,
                                                     " has shape [", absl::StrJoin(found->second.shape, ", "),
                                                     "], the model needs [", absl::StrJoin(parameter.shape, ", "), "]",
                                                     is_score ? ": train and save it with num_labels=1" : ""));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckModels(const RunConfig& config, Program program) {
  ModelConfig actor;
  std::set<std::tuple<std::string, HeadKind, bool>> checked;
  for (const ModelUse& use : ModelsOf(config, program)) {
    QUARTET_RETURN_IF_ERROR(CheckFolder(use.option, use.folder));
    const absl::StatusOr<ModelConfig> model = ReadModelConfig(use.folder);
    QUARTET_RETURN_IF_ERROR(Of(use.option, model.status()));
    QUARTET_RETURN_IF_ERROR(CheckLengthInWindow(*model, use.folder, use.length_option, use.length));
    if (use.option == "actor.pretrain") actor = *model;
    if (use.option == "rollout.pretrain") {
      QUARTET_RETURN_IF_ERROR(
          Of("rollout.tensor_parallel_size", CheckTensorParallel(*model, config.rollout().tensor_parallel_size())));
    }
    if (!checked.emplace(use.folder, use.head, use.has_head).second) continue;
    QUARTET_RETURN_IF_ERROR(Of(use.option, CheckTokenizerFits(use.folder, *model)));
    QUARTET_RETURN_IF_ERROR(
        Of(use.option, CheckSameVocabulary("model", use.folder, *model, config.actor().pretrain(), actor)));
    QUARTET_RETURN_IF_ERROR(Of(use.option, CheckWeights(use, *model)));
  }
  return absl::OkStatus();
}

// CUDA devices that the driver shows to this process; 0 where there is no driver.
int CountCudaDevices() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return 0;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count_devices = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int count = 0;
  if (init == nullptr || count_devices == nullptr || init(0) != 0 || count_devices(&count) != 0) return 0;
  return count;
}

absl::Status CheckDevices(const RunConfig& config, const std::vector<std::string>& services) {
  for (const std::string& service : services) {
    const ServicePlacement& placement = PlacementOf(config, service);
    if (placement.device() != "cuda") continue;
    if (!kBuiltForCuda) {
      return absl::InvalidArgumentError(
          absl::StrCat("services.", service,
                       ".device is \"cuda\"; this build has no CUDA: build with --config=cuda, or use \"cpu\""));
    }
    if (const int devices = CountCudaDevices(); placement.ranks() > devices) {
      return absl::InvalidArgumentError(
          absl::StrCat("services.", service, ".ranks is ", placement.ranks(),
                       " on device \"cuda\"; each rank needs a device, and this host has ", devices));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHttpFiles(const HttpConfig& http) {
  for (const auto& [option, path] :
       {std::pair("rollout.http.api_key_file", &http.api_key_file()),
        std::pair("rollout.http.cert_file", &http.cert_file()), std::pair("rollout.http.key_file", &http.key_file())}) {
    if (!path->empty()) QUARTET_RETURN_IF_ERROR(Of(option, ReadFile(*path).status()));
  }
  return absl::OkStatus();
}

absl::Status CheckState(const std::string& option, const std::string& folder) {
  return folder.empty() ? absl::OkStatus() : Of(option, StateReader::Open(folder).status());
}

}  // namespace

absl::Status CheckInputs(const RunConfig& config, Program program, bool launch) {
  QUARTET_RETURN_IF_ERROR(MakeChannelCredentials(config.tls()).status());
  QUARTET_RETURN_IF_ERROR(CheckFolder("actor.pretrain", config.actor().pretrain()));
  if (!launch) return absl::OkStatus();
  const bool ppo = program == Program::kPpo;
  QUARTET_RETURN_IF_ERROR(CheckModels(config, program));
  QUARTET_RETURN_IF_ERROR(CheckState("actor.load_checkpoint", config.actor().load_checkpoint()));
  if (ppo && UsesCritic(config))
    QUARTET_RETURN_IF_ERROR(CheckState("critic.load_checkpoint", config.critic().load_checkpoint()));
  if (ppo && config.rollout().has_http()) QUARTET_RETURN_IF_ERROR(CheckHttpFiles(config.rollout().http()));
  return CheckDevices(config, ppo ? PpoServices(config) : kSftServices);
}

absl::Status CheckBatch(const RunConfig& config, int64_t prompts) {
  const int64_t batch = config.rollout().rollout_batch_size();
  if (batch <= prompts) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rollout.rollout_batch_size is ", batch, ", but there are ", prompts, " prompts (",
                   absl::StrJoin(config.data().prompt_data(), ", "), "), which each batch would repeat; lower it to ",
                   prompts, " or less, and raise rollout.n_samples_per_prompt for more answers a step"));
}

}  // namespace quartet
