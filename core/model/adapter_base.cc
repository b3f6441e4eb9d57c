#include "core/model/adapter_base.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/model/config_fields.h"
#include "core/model/lora.h"
#include "core/safetensors/reader.h"
#include "core/safetensors/sample_hash.h"

namespace quartet {
namespace {

constexpr char kWeightsHash[] = "base_weights_hash";
constexpr size_t kHashDigits = 16;

std::string Hex16(uint64_t hash) { return absl::StrFormat("%016x", hash); }

}  // namespace

std::optional<uint64_t> HashBaseWeights(const std::string& base) {
  const absl::StatusOr<std::unique_ptr<CheckpointReader>> reader = CheckpointReader::Open(base);
  if (!reader.ok()) return std::nullopt;
  const absl::StatusOr<uint64_t> hash = HashSamples(**reader);
  return hash.ok() ? std::optional(*hash) : std::nullopt;
}

std::string AdapterBaseJson(uint64_t weights_hash) {
  return nlohmann::json({{kWeightsHash, Hex16(weights_hash)}}).dump(2) + "\n";
}

absl::Status CheckAdapterBase(const std::string& folder, const std::string& base,
                              std::optional<uint64_t> weights_hash) {
  const std::string path = absl::StrCat(folder, "/", std::string(kAdapterBaseFile));
  const absl::StatusOr<std::string> text = ReadTextFile(path, kMaxConfigBytes);
  std::error_code error;
  const bool is_there = std::filesystem::symlink_status(path, error).type() != std::filesystem::file_type::not_found;
  if (absl::IsNotFound(text.status()) && !is_there) return absl::OkStatus();
  QUARTET_RETURN_IF_ERROR(text.status());
  QUARTET_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJson(*text, path));
  if (!object.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": it must be a JSON object"));
  const ConfigFields fields(object, path);
  QUARTET_ASSIGN_OR_RETURN(const std::string written, fields.String(kWeightsHash, ""));
  uint64_t expected = 0;
  if (written.size() != kHashDigits || !std::ranges::all_of(written, absl::ascii_isxdigit) ||
      !absl::SimpleHexAtoi(written, &expected)) {
    return fields.Error(kWeightsHash, absl::StrCat("it must be ", kHashDigits, " hexadecimal digits"));
  }
  if (!weights_hash.has_value() || *weights_hash == expected) return absl::OkStatus();
  const std::string file(kAdapterBaseFile);
  return OtherBaseError(
      absl::StrCat("the folder of adapters ", folder), base, *weights_hash, expected,
      absl::StrCat("Put that model back, or write where it is now into base_model_name_or_path of ",
                   std::string(kAdapterConfigFile), " (of adapters in a checkpoint, in a copy of them); to use them ",
                   "with the model that is there all the same, leave ", file, " out of a copy"));
}

absl::Status OtherBaseError(std::string_view adapters, const std::string& base, uint64_t is, uint64_t was,
                            std::string_view ways) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(adapters), " belongs to another model than is in ", base,
                                                 " now: the weights there have the hash ", Hex16(is),
                                                 ", those of its own model ", Hex16(was), ". ", std::string(ways)));
}

}  // namespace quartet
