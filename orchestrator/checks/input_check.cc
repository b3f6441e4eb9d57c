#include "orchestrator/checks/input_check.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/division.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/state_folder.h"
#include "core/checkpoint/state_use.h"
#include "core/config/batches/call_sizes.h"
#include "core/config/placement.h"
#include "core/config/services.h"
#include "core/hardware/cuda_driver.h"
#include "core/model/lora.h"
#include "core/model/lora_options.h"
#include "core/model/model_config.h"
#include "core/model/parameter_layout.h"
#include "core/model/position_check.h"
#include "core/model/scalar_head_check.h"
#include "core/model/tensor_parallel.h"
#include "core/network/address.h"
#include "core/run_folder/checkpoints/checkpoint_record.h"
#include "core/run_folder/checkpoints/checkpoint_search.h"
#include "core/safetensors/reader.h"
#include "core/service/ranks/addresses/port_reservation.h"
#include "core/service/rpc/credentials.h"
#include "core/training/engine/model_folder_check.h"
#include "core/training/engine/reward_scale.h"
#include "nlohmann/json.hpp"

namespace quartet {
namespace {

#ifdef QUARTET_CUDA
constexpr bool kBuiltForCuda = true;
#else
constexpr bool kBuiltForCuda = false;
#endif

constexpr char kRolloutModel[] = "rollout.pretrain";

bool Has(const std::vector<std::string>& services, const std::string& service) {
  return std::find(services.begin(), services.end(), service) != services.end();
}

// A model that a service loads.
struct ModelUse {
  std::string option;
  std::string folder;
  HeadKind head;
  bool has_head;  // else one that is missing is drawn
  std::string length_option;
  int64_t length;
  std::string scalar_head = "";  // its name there; "": as config.json says
  std::string trained_as = "";   // "actor", "critic"
};

// The option and the folder of the model whose tokenizer is the run's.
std::pair<std::string, std::string> TokenizersModel(const RunConfig& c, Program program) {
  const std::string section = LearningSection(program);
  return {section + ".pretrain", TrainerOf(c, section).pretrain()};
}

std::vector<ModelUse> ModelsOf(const RunConfig& c, const std::vector<std::string>& services) {
  std::vector<ModelUse> models;
  for (const auto& [service, section, model, state] : kTrainers) {
    if (!Has(services, service)) continue;
    const TrainerConfig& trainer = TrainerOf(c, section);
    const HeadKind head = TrainedHead(section);
    models.push_back({section + ".pretrain", trainer.pretrain(), head, head == HeadKind::kVocabulary,
                      section + ".max_len", trainer.max_len()});
    models.back().trained_as = section;
  }
  if (Has(services, "rollout")) {
    models.push_back({kRolloutModel, c.rollout().pretrain(), HeadKind::kVocabulary, true, "rollout.max_model_len",
                      c.rollout().max_model_len()});
  }
  if (!Has(services, "scorer")) return models;
  for (const ScoringModel& model : ScoringModels(c)) {
    const HeadKind head = model.is_reference() ? HeadKind::kVocabulary : HeadKind::kScalar;
    models.push_back(
        {model.option(), model.folder, head, true, "actor.max_len", c.actor().max_len(), model.scalar_head});
  }
  return models;
}

absl::Status CheckAdapters(const std::string& folder, const ParameterLayout& layout) {
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader, OpenAdapters(folder, layout));
  for (const ParameterGroup& group : layout.groups) {
    for (const ParameterSpec& parameter : group.parameters) {
      const auto found = reader->tensors().find(parameter.name);
      if (found == reader->tensors().end()) {
        return absl::NotFoundError(absl::StrCat("the adapters in ", folder, " have no tensor ", parameter.name));
      }
      if (found->second.shape == parameter.shape) continue;
      return absl::InvalidArgumentError(absl::StrCat(reader->files().front(), ": tensor ", parameter.name,
                                                     " has shape ", ShapeText(found->second.shape),
                                                     ", the model needs ", ShapeText(parameter.shape)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWeights(const ModelUse& use, ModelConfig model) {
  if (!use.scalar_head.empty()) model.scalar_head = use.scalar_head;
  const std::string& folder = model.lora.has_value() ? model.lora->base_folder : use.folder;
  const bool brings_head = model.lora.has_value() && model.lora->has_head;
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader, CheckpointReader::Open(folder));
  if (use.head == HeadKind::kScalar && !brings_head) {
    QUARTET_RETURN_IF_ERROR(CheckScalarHead(model, folder, *reader));
  }
  const ParameterLayout layout = MakeParameterLayout(model, use.head);
  for (const ParameterGroup& group : layout.groups) {
    for (const ParameterSpec& parameter : group.parameters) {
      const std::string name = NameInFolder(parameter, model);
      const auto found = reader->tensors().find(name);
      const bool is_score = IsScalarHead(parameter);
      if (found == reader->tensors().end()) {
        if (is_score && (brings_head || (!use.has_head && model.head != HeadKind::kScalar))) continue;
        const char* why = "";
        if (is_score) {
          why = model.head == HeadKind::kScalar ? ", the scalar head that config.json says they have"
                                                : "; a reward model has a scalar head: "
                                                  "AutoModelForSequenceClassification with num_labels=1";
        }
        return absl::NotFoundError(absl::StrCat("the weights in ", folder, " have no tensor ", name, why));
      }
      if (found->second.shape == parameter.shape || (is_score && brings_head)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          reader->files()[found->second.file], ": tensor ", name, " has shape ", ShapeText(found->second.shape),
          ", the model needs ", ShapeText(parameter.shape), is_score ? ": train and save it with num_labels=1" : ""));
    }
  }
  return model.lora.has_value() ? CheckAdapters(use.folder, MakeLoraLayout(model, layout)) : absl::OkStatus();
}

// That an engine's cache holds a sequence of the greatest length: its keys and values, whatever lies between them.
absl::Status CheckCache(const ModelConfig& model, const RunConfig& config) {
  const RolloutConfig& rollout = config.rollout();
  if (rollout.has_gpu_memory_utilization()) return absl::OkStatus();  // the cache is what room there is
  const int64_t length = rollout.max_model_len() > 0 ? rollout.max_model_len() : LongestSequence(config);
  const int64_t blocks = CeilDivide(length, rollout.block_size());
  const int64_t heads = ShareOfConfig(model, rollout.tensor_parallel_size()).num_key_value_heads;
  const int64_t token_bytes =
      2 * model.num_hidden_layers * heads * model.head_dim * (rollout.dtype() == "fp32" ? 4 : 2);
  const int64_t bytes = blocks * rollout.block_size() * token_bytes;
  if (rollout.kv_cache_bytes() >= bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "rollout.kv_cache_bytes is ", rollout.kv_cache_bytes(), "; a sequence of ", length,
      " tokens, the longest that there may be, takes ", bytes, " bytes in blocks of ", rollout.block_size(),
      " tokens, and //orchestrator:plan says with how many all sequences of a step are in the cache at once"));
}

// `vocabulary` as ReadVocabulary has it.
absl::Status CheckStopTokens(int64_t vocabulary, const RolloutConfig& rollout) {
  for (const int32_t id : rollout.stop_token_ids()) {
    if (id >= 0 && id < vocabulary) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("rollout.stop_token_ids holds ", id, "; allowed: 0 to ", vocabulary - 1));
  }
  return absl::OkStatus();
}

// The rollout is given the actor's weights, tensor by tensor, and computes with them as its own config.json says: all
// that decides what comes out must be the same in both.
absl::Status CheckTakesWeightsOf(const TrainerConfig& actor, const ModelUse& use, const ModelConfig& model) {
  QUARTET_ASSIGN_OR_RETURN(const ModelConfig trained, ReadModelConfig(actor.pretrain()));
  if (actor.has_lora()) {
    QUARTET_RETURN_IF_ERROR(Prefixed(use.option, ReadTrainedConfig(use.folder, LoraOf(actor), use.head).status()));
  } else {
    QUARTET_RETURN_IF_ERROR(Prefixed(
        use.option, RefuseAdapters(model, use.folder, "a rollout that takes a whole actor's weights is a model")));
  }
  // What neither parameters nor what is computed of them depends on.
  static const auto& free =
      *new std::set<std::string>{"max_position_embeddings", "sliding_window", "use_sliding_window", "max_window_layers",
                                 "initializer_range",       "bos_token_id",   "pad_token_id",       "eos_token_id"};
  const auto keys_of = [](const ModelConfig& config) {
    auto object = nlohmann::json::parse(ConfigJson(config, HeadKind::kVocabulary));
    for (const std::string& key : free) object.erase(key);
    return object;
  };
  const nlohmann::json of_actor = keys_of(trained), of_rollout = keys_of(model);
  nlohmann::json keys = of_actor;
  keys.update(of_rollout);
  for (const auto& [key, any] : keys.items()) {
    const auto value = [&key = key](const nlohmann::json& object) {
      return object.contains(key) ? object.at(key).dump() : "not there";
    };
    if (value(of_actor) == value(of_rollout)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(use.option, ": ", key, " in ", ConfigPath(model, use.folder), " is ", value(of_rollout),
                     ", and that of actor.pretrain, ", actor.pretrain(), ", is ", value(of_actor),
                     "; they must be equal, since the rollout takes the actor's weights"));
  }
  return absl::OkStatus();
}

absl::Status CheckModels(const RunConfig& config, Program program) {
  const std::vector<std::string> services = ServicesOf(program, config);
  QUARTET_RETURN_IF_ERROR(CheckModelConfigs(config, services));
  const auto [option, folder] = TokenizersModel(config, program);
  QUARTET_RETURN_IF_ERROR(Prefixed(option, ReadModelConfig(folder).status()));
  std::map<std::string, int64_t> vocabularies;  // by folder
  std::set<std::tuple<std::string, HeadKind, bool, std::string>> weights;
  for (const ModelUse& use : ModelsOf(config, services)) {
    QUARTET_ASSIGN_OR_RETURN(const ModelConfig model, ReadModelConfig(use.folder));
    // To read a tokenizer, and a saved model whole, takes longer than all else here.
    if (!vocabularies.contains(use.folder)) {
      const absl::StatusOr<int64_t> vocabulary = ReadVocabulary("model", use.folder, model, folder);
      QUARTET_RETURN_IF_ERROR(Prefixed(use.option, vocabulary.status()));
      vocabularies[use.folder] = *vocabulary;
      QUARTET_RETURN_IF_ERROR(Prefixed(use.option, VerifySavedModel(use.folder)));
    }
    if (use.option == kRolloutModel) {
      QUARTET_RETURN_IF_ERROR(CheckStopTokens(vocabularies[use.folder], config.rollout()));
      if (Has(services, "policy_trainer")) QUARTET_RETURN_IF_ERROR(CheckTakesWeightsOf(config.actor(), use, model));
    }
    if (weights.emplace(use.folder, use.head, use.has_head, use.scalar_head).second) {
      QUARTET_RETURN_IF_ERROR(Prefixed(use.option, CheckWeights(use, model)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBuild(const RunConfig& config, const std::vector<std::string>& services) {
  for (const std::string& service : services) {
    if (PlacementOf(config, service).device() != "cuda" || kBuiltForCuda) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "services.", service, ".device is \"cuda\"; this build has no CUDA: build with --config=cuda, or use \"cpu\""));
  }
  return absl::OkStatus();
}

// That services that are started here can be where they are placed.
absl::Status CheckDevices(const RunConfig& config, const std::vector<std::string>& services) {
  QUARTET_ASSIGN_OR_RETURN(const auto placed, PlaceRanks(config));
  for (const std::string& service : services) {
    const bool on_cuda = PlacementOf(config, service).device() == "cuda";
    const int devices = on_cuda ? static_cast<int>(VisibleGpus().size()) : 0;
    for (const RankPlace& place : placed.at(service)) {
      if (place.node > 0) {
        return absl::InvalidArgumentError(absl::StrCat("the ", service, " has ranks on node ", place.node, " of the ",
                                                       config.cluster().num_nodes(),
                                                       " of cluster.num_nodes; --launch starts all of them on this "
                                                       "host: start the services of other hosts there, ",
                                                       "or place it on node 0"));
      }
      if (place.gpu >= devices && on_cuda) {
        return absl::InvalidArgumentError(
            absl::StrCat("services.", service, ".ranks is ", PlacementOf(config, service).ranks(),
                         " on device \"cuda\", one of them on GPU ", place.gpu, "; this host has ", devices));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHttpFiles(const HttpConfig& http) {
  for (const auto& [option, path] :
       {std::pair("rollout.http.api_key_file", &http.api_key_file()),
        std::pair("rollout.http.cert_file", &http.cert_file()), std::pair("rollout.http.key_file", &http.key_file())}) {
    if (!path->empty()) QUARTET_RETURN_IF_ERROR(Prefixed(option, ReadFile(*path).status()));
  }
  return absl::OkStatus();
}

// That services can listen where they are told to; at port 0 they always can.
absl::Status CheckAddresses(const RunConfig& config, const std::vector<std::string>& services) {
  std::vector<std::pair<std::string, std::string>> listens;
  for (const std::string& service : services) {
    listens.emplace_back(absl::StrCat("services.", service, ".listen"), PlacementOf(config, service).listen());
  }
  if (Has(services, "rollout") && config.rollout().has_http()) {
    listens.emplace_back("rollout.http.listen", config.rollout().http().listen());
  }
  std::map<std::string, std::string> taken;
  for (const auto& [option, text] : listens) {
    const absl::StatusOr<HostPort> address = ParseHostPort(text);
    QUARTET_RETURN_IF_ERROR(Prefixed(option, address.status()));
    if (address->port == 0) continue;
    const auto [other, is_new] = taken.emplace(address->ToString(), option);
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat(option, " and ", other->second, " are both ", text,
                                                     "; give each a port of its own, or port 0, a free one"));
    }
    QUARTET_RETURN_IF_ERROR(Prefixed(option, PortReservation::Make(*address).status()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLoadedState(const RunConfig& config, const std::string& section) {
  const TrainerConfig& trainer = TrainerOf(config, section);
  const std::string& folder = trainer.load_checkpoint();
  if (folder.empty()) return absl::OkStatus();
  const absl::StatusOr<std::unique_ptr<StateReader>> state = StateReader::Open(folder);
  QUARTET_RETURN_IF_ERROR(Prefixed(absl::StrCat(section, ".load_checkpoint"), state.status()));
  const StateManifest& manifest = (*state)->manifest();
  QUARTET_RETURN_IF_ERROR(CheckGoesOnFrom(manifest, folder, trainer.optim(), trainer.ema_decay() > 0, section));
  std::optional<AdapterConfig> adapters;
  if (trainer.has_lora()) {
    QUARTET_ASSIGN_OR_RETURN(ModelConfig model, ReadTrainedModel(section, trainer));
    adapters = std::move(model.lora);
  }
  return CheckStateOfSameAdapters(manifest, folder, adapters, section);
}

absl::Status CheckModelFolder(const std::string& option, const std::string& folder) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(option, ": the folder ", folder,
                   " does not exist; names of a model hub are not resolved: download the model and ",
                   "give its folder (relative paths start at ", ResolveUserPath("."), ")"));
}

absl::Status CheckModelConfigs(const RunConfig& config, const std::vector<std::string>& services) {
  for (const ModelUse& use : ModelsOf(config, services)) {
    QUARTET_RETURN_IF_ERROR(CheckModelFolder(use.option, use.folder));
    const absl::StatusOr<ModelConfig> model = ReadModelConfig(use.folder);
    QUARTET_RETURN_IF_ERROR(Prefixed(use.option, model.status()));
    if (!use.trained_as.empty()) {
      QUARTET_RETURN_IF_ERROR(ReadTrainedModel(use.trained_as, TrainerOf(config, use.trained_as)).status());
    }
    QUARTET_RETURN_IF_ERROR(Prefixed(use.option, CheckHead(*model, use.folder, use.head)));
    // Trainers and the scorer compute at positions beyond those that the model was made for; the rollout refuses to.
    const auto check_length = use.option == kRolloutModel ? CheckLengthInPositions : CheckLengthInWindow;
    QUARTET_RETURN_IF_ERROR(check_length(*model, use.folder, use.length_option, use.length));
    if (use.option == kRolloutModel) {
      QUARTET_RETURN_IF_ERROR(Prefixed("rollout.tensor_parallel_size",
                                       CheckTensorParallel(*model, config.rollout().tensor_parallel_size())));
      QUARTET_RETURN_IF_ERROR(CheckCache(*model, config));
    }
  }
  for (int i = 0; Has(services, "scorer") && i < config.reward().source_size(); ++i) {
    QUARTET_RETURN_IF_ERROR(Prefixed(absl::StrCat("reward.source[", i, "].normalize_reward"),
                                     ReadRewardScale(config.reward().source(i)).status()));
  }
  return absl::OkStatus();
}

absl::Status CheckReferenceIsClear(const RunConfig& config) {
  if (!ReferenceIsBase(config) || !IsAdapterFolder(config.actor().pretrain())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "reference.pretrain is not set; ", config.actor().pretrain(),
      ", actor.pretrain, is a folder of adapters, so that the reference may be these as they are (set it to the same "
      "folder) or the model without them (set it to the model)"));
}

// That ranks that belong together are there in whole groups.
absl::Status CheckRankGroups(const RunConfig& config, const std::vector<std::string>& services) {
  const auto check = [&](const std::string& service, const std::string& field, int size) -> absl::Status {
    const int ranks = PlacementOf(config, service).ranks();
    if (!Has(services, service) || size < 1 || ranks % size == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", size, " is not allowed; it must divide services.",
                                                   service, ".ranks, which is ", ranks));
  };
  QUARTET_RETURN_IF_ERROR(check("rollout", "rollout.tensor_parallel_size", config.rollout().tensor_parallel_size()));
  for (const TrainerNames& trainer : kTrainers) {
    QUARTET_RETURN_IF_ERROR(
        check(trainer.service, trainer.section + ".shard_size", TrainerOf(config, trainer.section).shard_size()));
  }
  return absl::OkStatus();
}

absl::Status CheckInputs(const RunConfig& config, Program program, ServicesStart start) {
  QUARTET_RETURN_IF_ERROR(MakeChannelCredentials(config.tls()).status());
  const auto [option, folder] = TokenizersModel(config, program);
  QUARTET_RETURN_IF_ERROR(CheckModelFolder(option, folder));
  if (start == ServicesStart::kByOthers) return absl::OkStatus();
  const std::vector<std::string> services = ServicesOf(program, config);
  QUARTET_RETURN_IF_ERROR(CheckRankGroups(config, services));
  QUARTET_RETURN_IF_ERROR(CheckModels(config, program));
  // A run that goes on reads its own states, which are looked at where it is known which.
  if (!config.train().load_checkpoint() || !NewestRecord(config.run_dir() + "/checkpoints").has_value()) {
    for (const TrainerNames& trainer : kTrainers) {
      if (Has(services, trainer.service)) QUARTET_RETURN_IF_ERROR(CheckLoadedState(config, trainer.section));
    }
  }
  if (Has(services, "rollout") && config.rollout().has_http()) {
    QUARTET_RETURN_IF_ERROR(CheckHttpFiles(config.rollout().http()));
  }
  QUARTET_RETURN_IF_ERROR(CheckBuild(config, services));
  if (start == ServicesStart::kOnCluster) return absl::OkStatus();
  QUARTET_RETURN_IF_ERROR(CheckDevices(config, services));
  return CheckAddresses(config, services);
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
