// Low-rank adapters (Hu et al. 2021, arXiv:2106.09685) in a folder as PEFT writes it: adapter_config.json and
// adapter_model.safetensors. To a product W x of the model they add scale * B (A x). LibTorch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/model/model_config.h"
#include "core/model/parameter_layout.h"
#include "core/safetensors/reader.h"

namespace quartet {

// By adapter_config.json, whatever else is there: as transformers does.
bool IsAdapterFolder(const std::string& folder);

// What ReadModelConfig reads of a folder of adapters. INVALID_ARGUMENT names the file, the field, its value and what is
// allowed. What is not known to be the arithmetic above is refused: a field of adapter_config.json that is neither read
// here nor known to be without effect has to be off. So are adapters of another model than their base's folder has now
// (core/model/adapter_base.h). NOT_FOUND where base_model_name_or_path, of which a relative one starts where the user
// is, is no folder.
absl::StatusOr<ModelConfig> ReadAdaptedConfig(const std::string& folder);

// All products of a block, as target_modules has it.
inline constexpr std::string_view kAllLinear = "all-linear";
// Their names, in the order of a block.
const std::vector<std::string>& AdapterTargets();

// Adapters that a model is to be trained with.
struct LoraOptions {
  int64_t r = 16;
  double alpha = 32;
  std::vector<std::string> targets;  // as adapter_config.json has target_modules; none: all products of a block
  bool use_rslora = false;
};

// ReadModelConfig where `lora` is not set. Where it is, a model's folder is given new adapters
// (AdapterConfig::are_new), and a folder of adapters must have just those: INVALID_ARGUMENT names the fields of
// actor.lora or critic.lora that differ, with both values. Those of a model that is trained with a scalar `head` bring
// it, whole: new ones begin with the model's, or with a drawn one. Errors of `folder` are ReadModelConfig's.
absl::StatusOr<ModelConfig> ReadTrainedConfig(const std::string& folder, const std::optional<LoraOptions>& lora,
                                              HeadKind head);

inline constexpr std::string_view kAdapterConfigFile = "adapter_config.json";
inline constexpr std::string_view kAdapterWeightsFile = "adapter_model.safetensors";

// The adapters of a model that has `base`, whole or a rank's share of it, under PEFT's names: a group a block, of each
// product that has them A [r, in] and then B [out, r], whose in_block is the product's weight; then a group of the
// scalar head [1, D], where they bring it.
ParameterLayout MakeLoraLayout(const ModelConfig& config, const ParameterLayout& base);

// What is trained of `config` with that head: its adapters where it has any, else the whole model.
ParameterLayout MakeTrainedLayout(const ModelConfig& config, HeadKind head);

// What a tensor of MakeLoraLayout is: A, which new adapters draw; B, which begins at 0; or the scalar head, which is
// the model's at first.
enum class AdapterPart { kA, kB, kHead };
AdapterPart PartOf(const ParameterSpec& parameter);

// The product, "q_proj" and so on, of which the tensor of that name is the A; "" of other tensors.
std::string ProductOfA(std::string_view tensor);

// The tensors of a folder of adapters. INVALID_ARGUMENT where it has one that `layout` has no place for.
absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenAdapters(const std::string& folder,
                                                               const ParameterLayout& layout);

// Where the tokenizer of a model's folder is: there, unless these are adapters without one of their own, which have
// their model's. Errors as ReadAdaptedConfig's.
absl::StatusOr<std::string> TokenizerFolder(const std::string& folder);

// INVALID_ARGUMENT where `config`, read of `folder`, has adapters: for those who have no use for them. `why` they have
// none is a clause.
absl::Status RefuseAdapters(const ModelConfig& config, const std::string& folder, std::string_view why);

}  // namespace quartet
