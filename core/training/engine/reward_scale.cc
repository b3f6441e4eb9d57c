#include "core/training/engine/reward_scale.h"

#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/data/json.h"

namespace quartet {
namespace {

constexpr int64_t kMostConfigBytes = 16 << 20;

std::string ConfigFile(const RewardSource& source) { return absl::StrCat(source.model(), "/config.json"); }

absl::Status Lacks(const RewardSource& source, std::string_view key) {
  return absl::InvalidArgumentError(absl::StrCat(
      ConfigFile(source), " has no number \"", std::string(key),
      "\", which normalize_reward needs (OpenRLHF writes \"mean\" and \"std\" there, beside adapters, too)"));
}

absl::StatusOr<nlohmann::json> ReadConfig(const RewardSource& source) {
  absl::StatusOr<nlohmann::json> config = ReadJsonFile(ConfigFile(source), kMostConfigBytes);
  if (absl::IsNotFound(config.status())) return nlohmann::json::object();
  if (config.ok() && !config->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(ConfigFile(source), " is no JSON object"));
  }
  return config;
}

}  // namespace

absl::StatusOr<RewardScale> ReadRewardScale(const RewardSource& source) {
  RewardScale scale;
  if (!source.normalize_reward()) return scale;
  QUARTET_ASSIGN_OR_RETURN(const nlohmann::json config, ReadConfig(source));
  for (const auto& [key, value] : {std::pair{"mean", &scale.mean}, {"std", &scale.std}}) {
    if (!config.contains(key) || !config[key].is_number()) {
      return Lacks(source, key);
    }
    *value = config[key].get<float>();
  }
  if (!std::isfinite(scale.mean) || !std::isfinite(scale.std) || scale.std <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(ConfigFile(source), ": mean ", scale.mean, " and std ", scale.std,
                                                   " are no scale of rewards; std must be above 0"));
  }
  return scale;
}

}  // namespace quartet
