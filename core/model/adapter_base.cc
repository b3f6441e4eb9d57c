#include "core/model/adapter_base.h"

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/hash.h"
#include "core/base/hash_text.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/data/json_fields.h"
#include "core/model/config_fields.h"
#include "core/model/lora.h"
#include "core/safetensors/reader.h"
#include "core/safetensors/sample_hash.h"

namespace quartet {
namespace {

constexpr char kBaseHash[] = "base_hash";

// What names and shapes of weights do not tell of the arithmetic. In later releases a number that has another value
// than it had without a field may follow, and nothing else change.
std::string ArithmeticOf(const ModelConfig& config) {
  std::string text = config.model_type;
  const auto add = [&text](double value) { absl::StrAppendFormat(&text, " %.17g", value); };
  for (const int64_t count : {config.num_attention_heads, config.num_key_value_heads, config.head_dim}) {
    add(static_cast<double>(count));
  }
  add(config.rms_norm_eps);
  add(config.rope_theta);
  const RopeScaling rope = config.rope_scaling.value_or(
      RopeScaling{.factor = 0, .low_freq_factor = 0, .high_freq_factor = 0, .original_max_position_embeddings = 0});
  for (const double value : {rope.factor, rope.low_freq_factor, rope.high_freq_factor}) add(value);
  add(static_cast<double>(rope.original_max_position_embeddings));
  add(config.tie_word_embeddings ? 1 : 0);
  add(config.embedding_multiplier);
  add(config.logits_scaling);
  add(config.block.residual_multiplier);
  add(config.block.attention_multiplier.value_or(0));
  return text;
}

}  // namespace

std::optional<uint64_t> HashBase(const std::string& base, const ModelConfig& config) {
  const absl::StatusOr<std::unique_ptr<CheckpointReader>> reader = CheckpointReader::Open(base);
  if (!reader.ok()) return std::nullopt;
  const absl::StatusOr<uint64_t> weights = HashSamples(**reader);
  return weights.ok() ? std::optional(HashBytes(ArithmeticOf(config), *weights)) : std::nullopt;
}

std::string AdapterBaseJson(uint64_t base_hash) {
  return nlohmann::json({{kBaseHash, HashText(base_hash)}}).dump(2) + "\n";
}

absl::Status CheckAdapterBase(const std::string& folder, const std::string& base, std::optional<uint64_t> base_hash) {
  const std::string path = absl::StrCat(folder, "/", std::string(kAdapterBaseFile));
  const absl::StatusOr<std::string> text = ReadTextFile(path, kMaxConfigBytes);
  std::error_code error;
  const bool is_there = std::filesystem::symlink_status(path, error).type() != std::filesystem::file_type::not_found;
  if (absl::IsNotFound(text.status()) && !is_there) return absl::OkStatus();
  QUARTET_RETURN_IF_ERROR(text.status());
  QUARTET_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJson(*text, path));
  JsonFields fields(path);
  const uint64_t expected = fields.Hash(object, kBaseHash);
  QUARTET_RETURN_IF_ERROR(fields.status());
  if (!base_hash.has_value() || *base_hash == expected) return absl::OkStatus();
  const std::string file(kAdapterBaseFile);
  return OtherBaseError(
      absl::StrCat("the folder of adapters ", folder), base, *base_hash, expected,
      absl::StrCat("Put that model back, or write where it is now into base_model_name_or_path of ",
                   std::string(kAdapterConfigFile), " (of adapters in a checkpoint, in a copy of them); to use them ",
                   "with the model that is there all the same, leave ", file, " out of a copy"));
}

absl::Status OtherBaseError(std::string_view adapters, const std::string& base, uint64_t is, uint64_t was,
                            std::string_view ways) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(adapters), " belongs to another model than is in ", base,
                                                 " now: of weights and config.json that has the hash ", HashText(is),
                                                 ", its own model ", HashText(was), ". ", std::string(ways)));
}

}  // namespace quartet
