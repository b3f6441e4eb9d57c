#include "core/model/scalar_head_check.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/model/families.h"

namespace quartet {

absl::Status CheckScalarHead(const ModelConfig& config, const std::string& folder, const CheckpointReader& weights) {
  const auto has = [&weights](const std::string& tensor) { return weights.tensors().contains(tensor); };
  const std::string& head = config.scalar_head;
  if (const std::string bias = absl::StrCat(head, ".bias"); has(bias)) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": the head has a bias, ", bias, "; a scalar head has none (bias=False)"));
  }
  // Another name than that of transformers' classes is one that was followed.
  if (head != kScalarHead || has(absl::StrCat(head, ".weight"))) return absl::OkStatus();
  const std::string path = absl::StrCat(folder, "/config.json");
  QUARTET_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJson(config.json, path));
  const auto prefix = object.find("value_head_prefix");
  if (prefix == object.end() || !prefix->is_string()) return absl::OkStatus();
  const auto architectures = object.find("architectures");
  if (architectures != object.end() && HasNamedHead(architectures->front().get<std::string>())) {
    return absl::OkStatus();  // and an option gives the head another name
  }
  const std::string named = absl::StrCat(prefix->get<std::string>(), ".weight");
  if (!has(named)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": value_head_prefix is ", prefix->dump(), ", and the weights have ", named, " and no ", head,
      ".weight, the head that is looked for; value_head_prefix is followed where architectures is [\"RewardModel\"] or "
      "[\"CriticModel\"], as OpenRLHF writes it: set it so for a model with that head"));
}

}  // namespace quartet
