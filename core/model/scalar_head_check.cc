#include "core/model/scalar_head_check.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"
#include "core/model/families.h"

namespace quartet {
namespace {

// What heads of one value are called elsewhere: TRL's, OpenRLHF's and other libraries'.
constexpr std::string_view kUsualHeads[] = {"v_head",     "value_head", "reward_head", "regression_head", "rm_head",
                                            "classifier", "score",      "scalar_head", "values_head"};

bool IsOfHeadsShape(const TensorInfo& tensor, const ModelConfig& config) {
  return tensor.shape == std::vector<int64_t>{1, config.hidden_size};
}

// A tensor that may be a trained head; "" where there is none.
std::string LeftOutHead(const ModelConfig& config, const CheckpointReader& weights) {
  for (const auto& [name, tensor] : weights.tensors()) {
    const std::string_view first = std::string_view(name).substr(0, name.find('.'));
    const bool is_named = std::ranges::find(kUsualHeads, first) != std::end(kUsualHeads);
    // No other parameter of a decoder has that shape.
    if (IsOfHeadsShape(tensor, config) || (is_named && name.ends_with("weight"))) return name;
  }
  return "";
}

// That no trained head is replaced by a new one. `path` is that of config.json.
absl::Status CheckNoneLeftOut(const ModelConfig& config, const std::string& path, const CheckpointReader& weights) {
  const std::string left_out = LeftOutHead(config, weights);
  if (left_out.empty()) return absl::OkStatus();
  const std::string prefix(absl::StripSuffix(left_out, ".weight"));
  const TensorInfo& tensor = weights.tensors().at(left_out);
  const bool has_bias = weights.tensors().contains(prefix + ".bias");
  const bool can_be_read = IsOfHeadsShape(tensor, config) && prefix != left_out && !has_bias;
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": the weights have ", left_out, " of shape ", ShapeText(tensor.shape),
      has_bias ? " and a bias beside it" : "", ", which may be a trained scalar head, and no ",
      std::string(kScalarHead), ".weight, the head that is looked for; ",
      can_be_read ? absl::StrCat("to read it, set architectures to [\"CriticModel\"] and value_head_prefix to \"",
                                 prefix, "\" there")
                  : absl::StrCat("it cannot be read, since a scalar head is one matrix of shape [1, ",
                                 config.hidden_size, "] without a bias"),
      "; to begin with a new head, set value_head_prefix to \"", std::string(kScalarHead), "\" there"));
}

}  // namespace

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
  if (prefix == object.end() || !prefix->is_string()) return CheckNoneLeftOut(config, path, weights);
  if (prefix->get<std::string>() == kScalarHead) return absl::OkStatus();  // whose weights are to be new
  const auto architectures = object.find("architectures");
  if (architectures != object.end() && HasNamedHead(architectures->front().get<std::string>())) {
    return absl::OkStatus();  // and an option gives the head another name
  }
  const std::string named = absl::StrCat(prefix->get<std::string>(), ".weight");
  if (!has(named)) return CheckNoneLeftOut(config, path, weights);
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": value_head_prefix is ", prefix->dump(), ", and the weights have ", named, " and no ", head,
      ".weight, the head that is looked for; value_head_prefix is followed where architectures is [\"RewardModel\"] or "
      "[\"CriticModel\"], as OpenRLHF writes it: set it so for a model with that head"));
}

}  // namespace quartet
