#include "core/model/lora.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/errors/shown.h"
#include "core/model/adapter_base.h"
#include "core/model/config_fields.h"

namespace quartet {
namespace {

// Products that may have adapters, by their names in a block.
constexpr std::string_view kProducts[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                          "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                          "mlp.down_proj"};
// PEFT saves whatever a sequence classifier's head may be called; "score" it is in all classes here.
constexpr std::string_view kOtherHead = "classifier";
constexpr std::string_view kPrefix = "base_model.model.";
constexpr const char* kBaseModel = "base_model_name_or_path";
constexpr size_t kLongestPath = 4096;
constexpr std::string_view kFactorA = ".lora_A", kFactorB = ".lora_B";

constexpr std::string_view kFieldsRead[] = {"base_model_name_or_path",
                                            "bias",
                                            "init_lora_weights",
                                            "lora_alpha",
                                            "lora_dropout",
                                            "modules_to_save",
                                            "peft_type",
                                            "r",
                                            "target_modules",
                                            "use_rslora"};
// Whatever they say, as long as the fields that are not named here are off.
constexpr std::string_view kFieldsWithoutEffect[] = {
    "auto_mapping", "inference_mode", "megatron_core", "peft_version", "qalora_group_size", "revision", "task_type"};
// How weights were drawn that have been trained since. Others, such as "pissa", change the model's own weights as well.
constexpr const char* kHarmlessInits[] = {"gaussian", "orthogonal"};

bool Has(const auto& list, std::string_view value) { return std::ranges::find(list, value) != std::end(list); }

std::string AdapterConfigPath(const std::string& folder) {
  return absl::StrCat(folder, "/", std::string(kAdapterConfigFile));
}

bool IsOff(const nlohmann::json& value) {
  return value.is_null() || value == false || value == "" || (value.is_structured() && value.empty());
}

absl::Status CheckOthersOff(const nlohmann::json& object, const ConfigFields& fields) {
  for (const auto& [name, value] : object.items()) {
    if (Has(kFieldsRead, name) || Has(kFieldsWithoutEffect, name) || IsOff(value)) continue;
    return fields.Error(name, "it must be off: adapters with it are not supported");
  }
  return absl::OkStatus();
}

absl::Status CheckValues(const ConfigFields& fields) {
  QUARTET_ASSIGN_OR_RETURN(const std::string type, fields.String("peft_type", "LORA"));
  if (type != "LORA") return fields.Error("peft_type", "supported is \"LORA\"");
  QUARTET_ASSIGN_OR_RETURN(const std::string bias, fields.String("bias", "none"));
  if (bias != "none") return fields.Error("bias", "supported is \"none\": biases are the model's own");
  const nlohmann::json* init = fields.Find("init_lora_weights");
  if (init == nullptr || init->is_boolean()) return absl::OkStatus();
  if (init->is_string() && Has(kHarmlessInits, init->get_ref<const std::string&>())) return absl::OkStatus();
  return fields.Error("init_lora_weights",
                      absl::StrCat("supported are true, false, \"", absl::StrJoin(kHarmlessInits, "\", \""),
                                   "\": others may change the model's own weights, which are read as they are"));
}

absl::StatusOr<bool> ReadHasHead(const ConfigFields& fields) {
  const nlohmann::json* modules = fields.Find("modules_to_save");
  if (modules == nullptr) return false;
  const std::string allowed = absl::StrCat("it must be null or a list of \"", std::string(kScalarHead),
                                           "\", the scalar head: other modules cannot be brought whole");
  if (!modules->is_array()) return fields.Error("modules_to_save", allowed);
  for (const nlohmann::json& module : *modules) {
    if (module != kScalarHead && module != kOtherHead) return fields.Error("modules_to_save", allowed);
  }
  return std::ranges::any_of(*modules, [](const nlohmann::json& module) { return module == kScalarHead; });
}

std::string ShortName(std::string_view product) { return std::string(product.substr(product.find('.') + 1)); }

// Which products have adapters: a name stands for every module whose path it is or ends.
absl::StatusOr<std::vector<std::string>> ReadTargets(const ConfigFields& fields, int64_t layers) {
  const std::vector<std::string>& names = AdapterTargets();
  const std::string allowed = absl::StrCat("it must be \"", std::string(kAllLinear), "\" or a list of ",
                                           absl::StrJoin(names, ", "), "; in all layers or in none");
  const nlohmann::json* targets = fields.Find("target_modules");
  if (targets != nullptr && *targets == kAllLinear) return names;
  if (targets == nullptr || !targets->is_array() || targets->empty()) return fields.Error("target_modules", allowed);
  std::set<std::string> unknown;
  for (const nlohmann::json& target : *targets) {
    if (!target.is_string()) return fields.Error("target_modules", allowed);
    unknown.insert(target.get<std::string>());
  }
  const std::set<std::string> wanted = unknown;
  std::vector<std::string> found;
  for (const std::string_view product : kProducts) {
    int64_t count = 0;
    for (int64_t layer = 0; layer < layers; ++layer) {
      const std::string path = absl::StrCat("model.layers.", layer, ".", std::string(product));
      bool is_target = false;
      for (size_t begin = 0; begin != std::string::npos;) {
        const std::string ending = path.substr(begin);
        if (wanted.contains(ending)) {
          is_target = true;
          unknown.erase(ending);
        }
        begin = path.find('.', begin);
        if (begin != std::string::npos) ++begin;
      }
      count += is_target ? 1 : 0;
    }
    if (count == layers) found.push_back(ShortName(product));
    if (count != 0 && count != layers) {
      return fields.Error("target_modules",
                          absl::StrCat(allowed, ", but ", ShortName(product), " is named in ", count, " of ", layers));
    }
  }
  if (!unknown.empty())
    return fields.Error("target_modules", absl::StrCat(allowed, ", not \"", *unknown.begin(), "\""));
  return found;
}

absl::StatusOr<AdapterConfig> ReadLora(const ConfigFields& fields, int64_t layers) {
  AdapterConfig lora;
  QUARTET_ASSIGN_OR_RETURN(lora.r, fields.Integer("r", 1, kMaxDimension, 8));
  QUARTET_ASSIGN_OR_RETURN(lora.alpha, fields.Number("lora_alpha", 0, 1e6, 8));
  QUARTET_ASSIGN_OR_RETURN(lora.use_rslora, fields.Boolean("use_rslora"));
  const auto r = static_cast<double>(lora.r);
  lora.scale = lora.alpha / (lora.use_rslora ? std::sqrt(r) : r);
  QUARTET_ASSIGN_OR_RETURN(lora.dropout, fields.Number("lora_dropout", 0, 1, 0.0));
  QUARTET_ASSIGN_OR_RETURN(lora.has_head, ReadHasHead(fields));
  QUARTET_ASSIGN_OR_RETURN(lora.targets, ReadTargets(fields, layers));
  return lora;
}

// Where the options stand by which a model with that head is trained by adapters.
const char* OptionsOf(HeadKind head) { return head == HeadKind::kScalar ? "critic.lora." : "actor.lora."; }

constexpr auto kReplaced = nlohmann::ordered_json::error_handler_t::replace;  // of text that is not UTF-8

std::string Written(const nlohmann::ordered_json& object) {
  return object.dump(2, ' ', /*ensure_ascii=*/false, kReplaced) + "\n";
}

// The text of an adapter_config.json, which is an object, with another base.
std::string WithBase(const std::string& text, const std::string& base) {
  auto object = nlohmann::ordered_json::parse(text);
  object[kBaseModel] = base;
  return Written(object);
}

// adapter_config.json of new adapters of the model in `base`, as PEFT writes it for a model with that head.
std::string NewAdapterJson(const LoraOptions& lora, const std::string& base, const std::vector<std::string>& targets,
                           HeadKind head) {
  const bool scalar = head == HeadKind::kScalar;
  const nlohmann::ordered_json object = {
      {"base_model_name_or_path", base},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"lora_alpha", lora.alpha},
      {"lora_dropout", 0.0},
      {"modules_to_save", scalar ? nlohmann::ordered_json{kOtherHead, kScalarHead} : nullptr},
      {"peft_type", "LORA"},
      {"r", lora.r},
      {"target_modules", targets},
      {"task_type", scalar ? "SEQ_CLS" : "CAUSAL_LM"},
      {"use_rslora", lora.use_rslora}};
  return Written(object);
}

// Of the options, of the model in `folder`.
absl::StatusOr<AdapterConfig> NewAdapters(const LoraOptions& lora, const std::string& folder, const ModelConfig& model,
                                          HeadKind head) {
  nlohmann::json object = {{"r", lora.r}, {"lora_alpha", lora.alpha}, {"use_rslora", lora.use_rslora}};
  const bool all = lora.targets.empty() || (lora.targets.size() == 1 && lora.targets.front() == kAllLinear);
  object["target_modules"] = all ? nlohmann::json(kAllLinear) : nlohmann::json(lora.targets);
  QUARTET_ASSIGN_OR_RETURN(AdapterConfig adapters,
                           ReadLora(ConfigFields(object, /*file=*/"", OptionsOf(head)), model.num_hidden_layers));
  const std::string base = ResolveUserPath(folder);
  adapters.are_new = true;
  adapters.has_head = head == HeadKind::kScalar;
  adapters.base_folder = base;
  adapters.base_hash = HashBase(base, model);
  adapters.json = NewAdapterJson(lora, base, adapters.targets, head);
  return adapters;
}

// Each field in which `options` make other adapters than `found`, with both values.
std::vector<std::string> Differences(const AdapterConfig& wanted, const AdapterConfig& found, const char* options) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* field, const auto& is, const auto& has) {
    if (is != has) differences.push_back(absl::StrCat(options, field, " is ", is, " and not ", has));
  };
  compare("r", wanted.r, found.r);
  if (wanted.scale != found.scale || wanted.r != found.r) {
    compare("alpha", wanted.alpha, found.alpha);
    const auto shown = [](bool value) { return std::string(value ? "true" : "false"); };
    compare("use_rslora", shown(wanted.use_rslora), shown(found.use_rslora));
  }
  compare("target_modules", absl::StrJoin(wanted.targets, ","), absl::StrJoin(found.targets, ","));
  return differences;
}

// Of a rank's share of the product's weight [out, in]: A is cut as its columns are, B as its rows.
ParameterSpec MakeFactor(const ParameterSpec& weight, const std::string& module, bool is_a, int64_t r) {
  const int dimension = is_a ? 1 : 0;
  const auto shape_of = [&](const std::vector<int64_t>& shape) {
    return is_a ? std::vector<int64_t>{r, shape[1]} : std::vector<int64_t>{shape[0], r};
  };
  ParameterSpec factor{
      .name = absl::StrCat(std::string(kPrefix), module, std::string(is_a ? kFactorA : kFactorB), ".weight"),
      .shape = shape_of(weight.shape),
      .in_block = weight.in_block};
  if (weight.slice.has_value() && weight.slice->dimension == dimension) {
    factor.slice =
        TensorSlice{shape_of(weight.slice->stored_shape), dimension, weight.slice->begin, weight.slice->copies};
  }
  return factor;
}

}  // namespace

const std::vector<std::string>& AdapterTargets() {
  static const auto& names = *new std::vector<std::string>([] {
    std::vector<std::string> all;
    for (const std::string_view product : kProducts) all.push_back(ShortName(product));
    return all;
  }());
  return names;
}

bool IsAdapterFolder(const std::string& folder) {
  std::error_code error;
  return std::filesystem::exists(AdapterConfigPath(folder), error);
}

absl::StatusOr<ModelConfig> ReadAdaptedConfig(const std::string& folder) {
  const std::string path = AdapterConfigPath(folder);
  QUARTET_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path, kMaxConfigBytes));
  QUARTET_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJson(text, path));
  if (!object.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": it must be a JSON object"));
  const ConfigFields fields(object, path);
  QUARTET_RETURN_IF_ERROR(CheckValues(fields));
  QUARTET_RETURN_IF_ERROR(CheckOthersOff(object, fields));
  QUARTET_ASSIGN_OR_RETURN(const std::string named, fields.String(kBaseModel, ""));
  const std::string base = ResolveUserPath(named);
  std::error_code error;
  if (!std::filesystem::is_directory(base, error)) {
    return absl::NotFoundError(
        absl::StrCat(path, ": ", kBaseModel, " is ", Quoted(named, kLongestPath),
                     "; it must be the folder of the model that the adapters belong to. Names of a model hub are not "
                     "resolved: download the model and write its folder there. Where the model has moved, write where "
                     "it is now (of adapters in a checkpoint, into a copy of them)"));
  }
  if (IsAdapterFolder(base)) return fields.Error(kBaseModel, "it must be a model, not adapters as well");
  QUARTET_ASSIGN_OR_RETURN(ModelConfig config, Prefixed(absl::StrCat(path, ": ", kBaseModel), ReadModelConfig(base)));
  const std::optional<uint64_t> base_hash = HashBase(base, config);
  QUARTET_RETURN_IF_ERROR(CheckAdapterBase(folder, base, base_hash));
  QUARTET_ASSIGN_OR_RETURN(config.lora, ReadLora(fields, config.num_hidden_layers));
  config.lora->base_folder = base;
  config.lora->base_hash = base_hash;
  config.lora->json = base == named ? std::move(text) : WithBase(text, base);
  if (config.lora->has_head) config.head = HeadKind::kScalar;
  return config;
}

absl::StatusOr<ModelConfig> ReadTrainedConfig(const std::string& folder, const std::optional<LoraOptions>& lora,
                                              HeadKind head) {
  QUARTET_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(folder));
  if (!lora.has_value()) return config;
  QUARTET_ASSIGN_OR_RETURN(AdapterConfig adapters, NewAdapters(*lora, folder, config, head));
  if (!config.lora.has_value()) {
    config.lora = std::move(adapters);
    return config;
  }
  if (adapters.has_head && !config.lora->has_head) {
    return absl::InvalidArgumentError(
        absl::StrCat("critic.lora is set, which trains the scalar head as well, and the adapters in ", folder,
                     " bring none (modules_to_save is not [\"", std::string(kScalarHead),
                     "\"]): begin with their model, or with what //tools:merge_lora makes of both"));
  }
  const std::vector<std::string> differences = Differences(adapters, *config.lora, OptionsOf(head));
  if (differences.empty()) return config;
  return absl::InvalidArgumentError(absl::StrCat(absl::StrJoin(differences, "; "), ": they must be as the adapters in ",
                                                 folder, " are, which are trained on"));
}

ParameterLayout MakeLoraLayout(const ModelConfig& config, const ParameterLayout& base) {
  const AdapterConfig& lora = *config.lora;
  ParameterLayout layout;
  for (int64_t block = 0; block < config.num_hidden_layers; ++block) {
    const ParameterGroup& whole = base.groups[base.block_group(static_cast<int>(block))];
    ParameterGroup& group = layout.groups.emplace_back(ParameterGroup{.name = whole.name, .parameters = {}});
    for (const ParameterSpec& weight : whole.parameters) {
      const std::string module = weight.name.substr(0, weight.name.rfind('.'));
      if (weight.shape.size() != 2 || !Has(lora.targets, module.substr(module.rfind('.') + 1))) continue;
      for (const bool is_a : {true, false}) group.parameters.push_back(MakeFactor(weight, module, is_a, lora.r));
    }
  }
  if (lora.has_head) {
    layout.head_group = static_cast<int>(layout.groups.size());
    layout.groups.push_back(
        {.name = "head",
         .parameters = {{.name = absl::StrCat(std::string(kPrefix), std::string(kScalarHead), ".weight"),
                         .shape = {1, config.hidden_size}}}});
  }
  return layout;
}

ParameterLayout MakeTrainedLayout(const ModelConfig& config, HeadKind head) {
  const ParameterLayout whole = MakeParameterLayout(config, head);
  return config.lora.has_value() ? MakeLoraLayout(config, whole) : whole;
}

AdapterPart PartOf(const ParameterSpec& parameter) {
  if (parameter.in_block == BlockTensor::kCount) return AdapterPart::kHead;
  return parameter.name.find(kFactorA) != std::string::npos ? AdapterPart::kA : AdapterPart::kB;
}

std::string ProductOfA(std::string_view tensor) {
  const size_t end = tensor.rfind(kFactorA);
  if (end == std::string_view::npos) return "";
  const std::string_view module = tensor.substr(0, end);
  return std::string(module.substr(module.rfind('.') + 1));
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenAdapters(const std::string& folder,
                                                               const ParameterLayout& layout) {
  const std::string path = absl::StrCat(folder, "/", std::string(kAdapterWeightsFile));
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat("the folder of adapters ", folder, " has no ",
                                            std::string(kAdapterWeightsFile),
                                            ", which PEFT's save_pretrained writes; no other file of weights is read"));
  }
  QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointReader> reader, CheckpointReader::OpenFile(path));
  std::set<std::string> known;
  for (const ParameterGroup& group : layout.groups) {
    for (const ParameterSpec& parameter : group.parameters) known.insert(parameter.name);
  }
  for (const auto& [name, info] : reader->tensors()) {
    if (known.contains(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(path, ": there is no place for the tensor ", name,
                                                   " beside the adapters that ", AdapterConfigPath(folder),
                                                   " names; what it would change is not supported"));
  }
  return reader;
}

absl::StatusOr<std::string> TokenizerFolder(const std::string& folder) {
  std::error_code error;
  if (!IsAdapterFolder(folder) || std::filesystem::exists(folder + "/tokenizer.json", error)) return folder;
  QUARTET_ASSIGN_OR_RETURN(const ModelConfig config, ReadAdaptedConfig(folder));
  return config.lora->base_folder;
}

absl::Status RefuseAdapters(const ModelConfig& config, const std::string& folder, std::string_view why) {
  if (!config.lora.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(folder, " holds adapters (adapter_config.json): ", std::string(why)));
}

}  // namespace quartet
