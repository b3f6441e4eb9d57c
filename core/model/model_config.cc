#include "core/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/model/config_fields.h"
#include "core/model/families.h"
#include "core/model/lora.h"

namespace quartet {
namespace {

using nlohmann::json;

constexpr int64_t kMaxLayers = 10000;
constexpr double kMaxRopeTheta = 1e12;  // of long contexts; below 1 frequencies would grow

constexpr int64_t kDefaultHiddenSize = 4096;
constexpr int64_t kDefaultLayers = 32;
constexpr int64_t kDefaultHeads = 32;
constexpr int64_t kDefaultSlidingWindow = 4096;
constexpr int64_t kDefaultMaxWindowLayers = 28;

// The labels of a sequence classifier are the entries of id2label; transformers' default is two.
absl::Status CheckOneLabel(const ConfigFields& fields) {
  const json* labels = fields.Find("id2label");
  const json* count = fields.Find("num_labels");
  if (labels != nullptr ? labels->is_object() && labels->size() == 1 : count != nullptr && *count == 1) {
    return absl::OkStatus();
  }
  return fields.Error("id2label",
                      "a model with a scalar head has one label ({\"0\": \"LABEL_0\"}; without it transformers "
                      "takes two): train and save it with num_labels=1");
}

absl::StatusOr<const Family*> ReadFamily(const ConfigFields& fields, ModelConfig* config) {
  QUARTET_ASSIGN_OR_RETURN(config->model_type, fields.String("model_type", ""));
  const Family* family = FindFamily(config->model_type);
  if (family == nullptr) {
    const auto quoted = [](std::string* out, const Family& known) {
      absl::StrAppend(out, "\"", std::string(known.model_type), "\"");
    };
    return fields.Error("model_type", absl::StrCat("supported are ", absl::StrJoin(Families(), ", ", quoted)));
  }
  config->block = family->block;
  const json* architectures = fields.Find("architectures");
  if (architectures == nullptr) return family;
  if (!architectures->is_array() || architectures->size() != 1 || !architectures->front().is_string()) {
    return fields.Error("architectures", "it must be a list of one name");
  }
  const std::string architecture = architectures->front().get<std::string>();
  if (!family->classification.empty() && architecture == family->classification) {
    QUARTET_RETURN_IF_ERROR(CheckOneLabel(fields));
    config->head = HeadKind::kScalar;
  } else if (HasNamedHead(architecture)) {
    config->head = HeadKind::kScalar;
    QUARTET_ASSIGN_OR_RETURN(config->scalar_head, fields.String("value_head_prefix", kScalarHead));
  } else if (architecture != family->causal_lm) {
    std::string supported(family->causal_lm);
    if (!family->classification.empty()) supported += ", " + std::string(family->classification);
    return fields.Error("architectures", absl::StrCat("supported for model_type \"", std::string(family->model_type),
                                                      "\" are ", supported, ", RewardModel and CriticModel"));
  }
  return family;
}

absl::Status ReadRope(const ConfigFields& fields, ModelConfig* config) {
  QUARTET_ASSIGN_OR_RETURN(config->rope_theta, fields.Number("rope_theta", 1, kMaxRopeTheta, 10000.0));
  QUARTET_ASSIGN_OR_RETURN(const double rotated, fields.Number("partial_rotary_factor", 0, 1, 1.0));
  if (rotated != 1)
    return fields.Error("partial_rotary_factor", "supported is 1: every dimension of a head is rotated");

  // "rope_parameters" is the name of transformers 5, which also moved rope_theta into it.
  const std::string name = fields.Find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const json* object = fields.Find(name);
  if (object == nullptr) return absl::OkStatus();
  if (!object->is_object()) return fields.Error(name, "it must be an object or null");
  const ConfigFields rope(*object, fields.file(), absl::StrCat(name, "."));
  if (name == "rope_parameters") {
    QUARTET_ASSIGN_OR_RETURN(config->rope_theta, rope.Number("rope_theta", 1, kMaxRopeTheta, config->rope_theta));
  }
  const json *new_type = rope.Find("rope_type"), *old_type = rope.Find("type");
  if (new_type != nullptr && old_type != nullptr && *new_type != *old_type) {
    return rope.Error("type", absl::StrCat("rope_type, another name of it, is ", ShownValue(*new_type)));
  }
  const std::string type_name = new_type != nullptr ? "rope_type" : "type";
  QUARTET_ASSIGN_OR_RETURN(const std::string type, rope.String(type_name, "default"));
  if (type == "default") return absl::OkStatus();
  if (type != "llama3") {
    return rope.Error(
        type_name,
        "supported are \"default\" and \"llama3\" (with \"dynamic\", \"yarn\" or \"longrope\" a cache and "
        "a full forward, or lengths beyond training, would not agree)");
  }
  RopeScaling scaling;
  QUARTET_ASSIGN_OR_RETURN(scaling.factor, rope.Number("factor", 1, 1e6, std::nullopt));
  QUARTET_ASSIGN_OR_RETURN(scaling.low_freq_factor, rope.Factor("low_freq_factor", std::nullopt));
  QUARTET_ASSIGN_OR_RETURN(scaling.high_freq_factor, rope.Factor("high_freq_factor", std::nullopt));
  QUARTET_ASSIGN_OR_RETURN(scaling.original_max_position_embeddings,
                           rope.Dimension("original_max_position_embeddings"));
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    return rope.Error("high_freq_factor",
                      absl::StrCat("it must be greater than low_freq_factor, which is ", scaling.low_freq_factor));
  }
  config->rope_scaling = scaling;
  return absl::OkStatus();
}

// Reads the window through which a layer attends; none where no layer does, whatever sliding_window says.
absl::Status ReadSlidingWindow(const ConfigFields& fields, Windows windows, ModelConfig* config) {
  const bool all = windows == Windows::kAll, some = windows == Windows::kSomeOfThem;
  const int64_t layers = config->num_hidden_layers;
  bool uses_window = all;
  if (some) {
    QUARTET_ASSIGN_OR_RETURN(uses_window, fields.Boolean("use_sliding_window"));
  }
  std::optional<int64_t> window;
  if (uses_window && (!fields.Has("sliding_window") || fields.Find("sliding_window") != nullptr)) {
    QUARTET_ASSIGN_OR_RETURN(window, fields.Integer("sliding_window", 1, kMaxDimension, kDefaultSlidingWindow));
  }
  int64_t sliding = all ? layers : 0;
  if (const json* types = fields.Find("layer_types"); types != nullptr) {
    const int64_t named = std::count(types->begin(), types->end(), "sliding_attention");
    const int64_t full = std::count(types->begin(), types->end(), "full_attention");
    if (!types->is_array() || full + named != layers) {
      return fields.Error(
          "layer_types",
          absl::StrCat("it must be a list of \"full_attention\" or \"sliding_attention\" for each of the ", layers,
                       " layers"));
    }
    if (named > 0 && windows == Windows::kNone) {
      return fields.Error("layer_types", absl::StrCat("\"", config->model_type, "\" has \"full_attention\" alone"));
    }
    if (named > 0 && some && !window.has_value()) {
      return fields.Error(uses_window ? "sliding_window" : "use_sliding_window",
                          "layer_types names layers with \"sliding_attention\", which need a window");
    }
    if (!all) sliding = named;
  } else if (window.has_value() && some) {
    QUARTET_ASSIGN_OR_RETURN(const int64_t first,
                             fields.Integer("max_window_layers", 0, kMaxDimension, kDefaultMaxWindowLayers));
    sliding = std::max<int64_t>(0, layers - first);
  }
  if (sliding > 0) config->sliding_window = window;
  return absl::OkStatus();
}

absl::Status ReadShape(const ConfigFields& fields, const Family& family, ModelConfig* config) {
  QUARTET_ASSIGN_OR_RETURN(config->vocab_size, fields.Dimension("vocab_size", family.vocab_size));
  QUARTET_ASSIGN_OR_RETURN(config->hidden_size, fields.Dimension("hidden_size", kDefaultHiddenSize));
  QUARTET_ASSIGN_OR_RETURN(config->intermediate_size, fields.Dimension("intermediate_size", family.intermediate_size));
  QUARTET_ASSIGN_OR_RETURN(config->num_hidden_layers,
                           fields.Integer("num_hidden_layers", 1, kMaxLayers, kDefaultLayers));
  QUARTET_ASSIGN_OR_RETURN(config->num_attention_heads, fields.Dimension("num_attention_heads", kDefaultHeads));
  QUARTET_ASSIGN_OR_RETURN(config->max_position_embeddings,
                           fields.Dimension("max_position_embeddings", family.max_position_embeddings));

  // Null means as many as heads in every family.
  config->num_key_value_heads = config->num_attention_heads;
  if (!fields.Has("num_key_value_heads") || fields.Find("num_key_value_heads") != nullptr) {
    QUARTET_ASSIGN_OR_RETURN(
        config->num_key_value_heads,
        fields.Dimension("num_key_value_heads", family.num_key_value_heads.value_or(config->num_attention_heads)));
  }
  if (config->num_attention_heads % config->num_key_value_heads != 0) {
    return fields.Error("num_key_value_heads",
                        absl::StrCat("it must divide num_attention_heads, which is ", config->num_attention_heads,
                                     "; where the key is absent it is ",
                                     family.num_key_value_heads.value_or(config->num_attention_heads)));
  }
  if (fields.Find("head_dim") == nullptr && !family.head_dim.has_value()) {
    if (config->hidden_size % config->num_attention_heads != 0) {
      return fields.Error("hidden_size",
                          absl::StrCat("without head_dim it must be a multiple of num_attention_heads, which is ",
                                       config->num_attention_heads));
    }
    config->head_dim = config->hidden_size / config->num_attention_heads;
    if (config->head_dim % 2 != 0) {
      return fields.Error("hidden_size", absl::StrCat("it makes heads of ", config->head_dim,
                                                      " dimensions; rotary embeddings need an even number"));
    }
  } else {
    QUARTET_ASSIGN_OR_RETURN(config->head_dim, fields.Dimension("head_dim", family.head_dim));
    if (config->head_dim % 2 != 0) return fields.Error("head_dim", "rotary embeddings need an even number");
  }
  return absl::OkStatus();
}

absl::Status ReadMultipliers(const ConfigFields& fields, ModelConfig* config) {
  QUARTET_ASSIGN_OR_RETURN(config->embedding_multiplier, fields.Factor("embedding_multiplier", 1.0));
  QUARTET_ASSIGN_OR_RETURN(config->logits_scaling, fields.Factor("logits_scaling", 1.0));
  QUARTET_ASSIGN_OR_RETURN(config->block.residual_multiplier, fields.Factor("residual_multiplier", 1.0));
  QUARTET_ASSIGN_OR_RETURN(config->block.attention_multiplier, fields.Factor("attention_multiplier", 1.0));
  return absl::OkStatus();
}

absl::Status ReadVariant(const ConfigFields& fields, const Family& family, ModelConfig* config) {
  QUARTET_ASSIGN_OR_RETURN(config->rms_norm_eps, fields.Number("rms_norm_eps", 1e-20, 0.1, family.rms_norm_eps));
  QUARTET_ASSIGN_OR_RETURN(config->tie_word_embeddings, fields.Boolean("tie_word_embeddings"));
  QUARTET_ASSIGN_OR_RETURN(config->initializer_range, fields.Number("initializer_range", 0, 1e6, 0.02));
  if (family.has_attention_bias) {
    QUARTET_ASSIGN_OR_RETURN(config->block.o_bias, fields.Boolean("attention_bias"));
    config->block.qkv_bias = config->block.o_bias;
  }
  if (family.has_mlp_bias) {
    QUARTET_ASSIGN_OR_RETURN(config->block.mlp_bias, fields.Boolean("mlp_bias"));
  }
  if (family.has_multipliers) QUARTET_RETURN_IF_ERROR(ReadMultipliers(fields, config));
  QUARTET_ASSIGN_OR_RETURN(const std::string activation, fields.String("hidden_act", "silu"));
  if (activation != "silu") return fields.Error("hidden_act", "supported is \"silu\"");
  QUARTET_ASSIGN_OR_RETURN(const double dropout, fields.Number("attention_dropout", 0, 1, 0.0));
  if (dropout != 0)
    return fields.Error("attention_dropout", "supported is 0: dropout would make log-probabilities random");
  if (fields.Find("quantization_config") != nullptr) {
    return fields.Error("quantization_config", "quantised weights are not supported; save the model in bfloat16");
  }
  return absl::OkStatus();
}

absl::Status ReadTokenIds(const ConfigFields& fields, const std::string& folder, const Family& family,
                          ModelConfig* config) {
  using Id = std::optional<int64_t>;
  const auto optional_id = [&](const std::string& name, Id fallback) -> absl::StatusOr<Id> {
    if (!fields.Has(name)) return fallback;
    if (fields.Find(name) == nullptr) return Id();
    QUARTET_ASSIGN_OR_RETURN(const int64_t id, fields.Integer(name, -1, kMaxDimension));
    return id < 0 ? std::nullopt : Id(id);  // Llama 1 and 2 write -1 for none
  };
  QUARTET_ASSIGN_OR_RETURN(config->bos_token_id, optional_id("bos_token_id", family.bos_token_id));
  QUARTET_ASSIGN_OR_RETURN(config->pad_token_id, optional_id("pad_token_id", family.pad_token_id));
  QUARTET_ASSIGN_OR_RETURN(config->eos_token_ids, fields.Ids("eos_token_id", config->vocab_size));
  if (!fields.Has("eos_token_id") && family.eos_token_id.has_value()) config->eos_token_ids = {*family.eos_token_id};

  const std::string path = absl::StrCat(folder, "/generation_config.json");
  absl::StatusOr<json> generation = ReadJsonFile(path, kMaxConfigBytes);
  if (absl::IsNotFound(generation.status())) return absl::OkStatus();
  QUARTET_RETURN_IF_ERROR(generation.status());
  if (!generation->is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": it must be a JSON object"));
  QUARTET_ASSIGN_OR_RETURN(std::vector<int64_t> ids,
                           ConfigFields(*generation, path).Ids("eos_token_id", config->vocab_size));
  if (!ids.empty()) config->eos_token_ids = std::move(ids);
  return absl::OkStatus();
}

// Says in a config.json which head the weights beside it have, and under which name ReadFamily finds it.
void SetHead(const ModelConfig& config, HeadKind head, nlohmann::ordered_json* object) {
  const Family* family = FindFamily(config.model_type);
  QUARTET_CHECK(family != nullptr) << "model_type \"" << config.model_type << "\"";
  nlohmann::ordered_json& architectures = (*object)["architectures"];
  if (head == HeadKind::kVocabulary) {
    architectures = {family->causal_lm};
    return;
  }
  const bool has_named_head = architectures.is_array() && architectures.size() == 1 &&
                              HasNamedHead(architectures[0].get_ref<const std::string&>());
  if (!has_named_head && !family->classification.empty() && config.scalar_head == kScalarHead) {
    architectures = {family->classification};
    object->erase("value_head_prefix");
  } else {
    if (!has_named_head) architectures = {kNamedHeads[0]};
    (*object)["value_head_prefix"] = config.scalar_head;
  }
  // transformers takes the number of outputs from here, two by default.
  (*object)["id2label"] = {{"0", "LABEL_0"}};
  (*object)["label2id"] = {{"LABEL_0", 0}};
}

// For an error: the models in a checkpoint of a run, in the folder of all of them, in that of the run.
std::string ModelsIn(const std::string& folder) {
  std::vector<std::string> models;
  for (const char* to_checkpoint : {"", "/latest", "/checkpoints/latest"}) {
    for (const char* name : {"/policy", "/critic"}) {
      std::string model = absl::StrCat(folder, to_checkpoint, name);
      std::error_code error;
      if (!std::filesystem::exists(model + "/config.json", error) && !IsAdapterFolder(model)) continue;
      models.push_back(std::move(model));
    }
  }
  return models.empty() ? "" : "; there is one in " + absl::StrJoin(models, ", and in ");
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& folder) {
  if (IsAdapterFolder(folder)) return ReadAdaptedConfig(folder);
  const std::string path = absl::StrCat(folder, "/config.json");
  ModelConfig config;
  absl::StatusOr<std::string> text = ReadTextFile(path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(
        absl::StrCat(path, " does not exist; a Hugging Face model folder has it, with model.safetensors beside it",
                     ModelsIn(folder)));
  }
  QUARTET_ASSIGN_OR_RETURN(config.json, std::move(text));
  QUARTET_ASSIGN_OR_RETURN(const json object, ParseJson(config.json, path));
  if (!object.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": it must be a JSON object"));
  const ConfigFields fields(object, path);
  QUARTET_ASSIGN_OR_RETURN(const Family* family, ReadFamily(fields, &config));
  QUARTET_RETURN_IF_ERROR(ReadShape(fields, *family, &config));
  QUARTET_RETURN_IF_ERROR(ReadVariant(fields, *family, &config));
  QUARTET_RETURN_IF_ERROR(ReadRope(fields, &config));
  QUARTET_RETURN_IF_ERROR(ReadSlidingWindow(fields, family->windows, &config));
  QUARTET_RETURN_IF_ERROR(ReadTokenIds(fields, folder, *family, &config));
  return config;
}

std::string ConfigPath(const ModelConfig& config, const std::string& folder) {
  return absl::StrCat(config.lora.has_value() ? config.lora->base_folder : folder, "/config.json");
}

absl::Status CheckLengthInWindow(const ModelConfig& config, const std::string& folder, std::string_view field,
                                 int64_t length) {
  if (!config.sliding_window.has_value() || length <= *config.sliding_window) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      std::string(field), " is ", length, "; at most ", *config.sliding_window, " is allowed, since ",
      ConfigPath(config, folder), " has layers that attend through a sliding_window of that length (",
      kDefaultSlidingWindow, " where the key is absent), which is supported for sequences within it alone"));
}

absl::Status CheckHead(const ModelConfig& config, const std::string& folder, HeadKind head) {
  if (head != HeadKind::kVocabulary || config.head != HeadKind::kScalar) return absl::OkStatus();
  if (config.lora.has_value() && config.lora->has_head) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, "/adapter_config.json: modules_to_save names a scalar head (", std::string(kScalarHead),
                     "): adapters of a critic or a reward model; here a language model is wanted"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(ConfigPath(config, folder), ": architectures names a model with a scalar head (", config.scalar_head,
                   ".weight), a critic or a reward model; here a language model is wanted, \"",
                   std::string(FindFamily(config.model_type)->causal_lm), "\""));
}

std::string ConfigJson(const ModelConfig& config, HeadKind head, std::string_view torch_dtype) {
  nlohmann::ordered_json object;
  SetHead(config, head, &object);
  const Family* family = FindFamily(config.model_type);
  object["model_type"] = config.model_type;
  object["vocab_size"] = config.vocab_size;
  object["hidden_size"] = config.hidden_size;
  object["intermediate_size"] = config.intermediate_size;
  object["num_hidden_layers"] = config.num_hidden_layers;
  object["num_attention_heads"] = config.num_attention_heads;
  object["num_key_value_heads"] = config.num_key_value_heads;
  object["head_dim"] = config.head_dim;
  object["hidden_act"] = "silu";
  object["max_position_embeddings"] = config.max_position_embeddings;
  object["rms_norm_eps"] = config.rms_norm_eps;
  object["rope_theta"] = config.rope_theta;
  if (config.rope_scaling.has_value()) {
    object["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", config.rope_scaling->factor},
        {"low_freq_factor", config.rope_scaling->low_freq_factor},
        {"high_freq_factor", config.rope_scaling->high_freq_factor},
        {"original_max_position_embeddings", config.rope_scaling->original_max_position_embeddings},
    };
  } else {
    object["rope_scaling"] = nullptr;
  }
  object["tie_word_embeddings"] = config.tie_word_embeddings;
  if (family->has_attention_bias) object["attention_bias"] = config.block.o_bias;
  if (family->has_mlp_bias) object["mlp_bias"] = config.block.mlp_bias;
  if (family->has_multipliers) {
    object["embedding_multiplier"] = config.embedding_multiplier;
    object["logits_scaling"] = config.logits_scaling;
    object["residual_multiplier"] = config.block.residual_multiplier;
    object["attention_multiplier"] = config.block.attention_multiplier.value_or(1);
  }
  const bool slides = config.sliding_window.has_value();
  if (family->windows == Windows::kSomeOfThem) {
    object["use_sliding_window"] = slides;
    if (slides) object["max_window_layers"] = 0;
  }
  if (slides) {
    object["sliding_window"] = *config.sliding_window;
  } else if (family->windows == Windows::kAll) {
    object["sliding_window"] = nullptr;
  }
  object["attention_dropout"] = 0.0;
  object["initializer_range"] = config.initializer_range;
  const auto id_or_null = [](const std::optional<int64_t>& id) {
    return id.has_value() ? nlohmann::ordered_json(*id) : nlohmann::ordered_json(nullptr);
  };
  object["bos_token_id"] = id_or_null(config.bos_token_id);
  object["pad_token_id"] = id_or_null(config.pad_token_id);
  if (config.eos_token_ids.size() == 1) {
    object["eos_token_id"] = config.eos_token_ids.front();
  } else if (config.eos_token_ids.empty()) {
    object["eos_token_id"] = nullptr;
  } else {
    object["eos_token_id"] = config.eos_token_ids;
  }
  object["torch_dtype"] = torch_dtype;
  object["use_cache"] = true;
  return object.dump(2) + "\n";
}

std::string TrainedConfigJson(const ModelConfig& config, HeadKind head, std::string_view torch_dtype) {
  auto object = nlohmann::ordered_json::parse(config.json, nullptr, /*allow_exceptions=*/false);
  QUARTET_CHECK(object.is_object()) << config.json;
  SetHead(config, head, &object);
  object["torch_dtype"] = torch_dtype;
  if (object.contains("dtype")) object["dtype"] = torch_dtype;  // its name since transformers 5
  if (head == HeadKind::kScalar) {
    for (const char* scale : {"mean", "std"}) object.erase(scale);
  }
  return object.dump(2) + "\n";
}

}  // namespace quartet
