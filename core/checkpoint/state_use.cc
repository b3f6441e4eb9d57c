#include "core/checkpoint/state_use.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/model/adapter_base.h"

namespace quartet {

absl::Status CheckGoesOnFrom(const StateManifest& manifest, const std::string& folder, std::string_view optimizer,
                             bool has_average, const std::string& section) {
  const std::string has = absl::StrCat("(it has ", absl::StrJoin(manifest.kinds, ", "), ")");
  constexpr char kAnew[] = ", or begin anew from the model that was saved with it";
  if (optimizer != manifest.optimizer) {
    return absl::InvalidArgumentError(absl::StrCat(section, ".optim: \"", std::string(optimizer),
                                                   "\" is not allowed; training goes on from ", folder,
                                                   ", which is of the optimizer \"", manifest.optimizer, "\" ", has,
                                                   ": set it to \"", manifest.optimizer, "\"", kAnew));
  }
  if (has_average && std::ranges::find(manifest.kinds, kAverageKind) == manifest.kinds.end()) {
    return absl::InvalidArgumentError(absl::StrCat(section, ".ema_decay: only 0 is allowed; training goes on from ",
                                                   folder, ", which has no average of the weights ", has,
                                                   ": set it to 0", kAnew));
  }
  return absl::OkStatus();
}

absl::Status CheckStateOfSameAdapters(const StateManifest& manifest, const std::string& folder,
                                      const std::optional<AdapterConfig>& adapters) {
  if (adapters.has_value() && manifest.adapter_scale.has_value() && *manifest.adapter_scale != adapters->scale) {
    return absl::InvalidArgumentError(
        absl::StrCat("the training state in ", folder, " is of adapters that are added times ", *manifest.adapter_scale,
                     " (alpha / r; with use_rslora alpha / sqrt(r)), and these are added times ", adapters->scale,
                     ": set lora.alpha and lora.use_rslora as they were"));
  }
  if (!adapters.has_value() || !adapters->base_hash.has_value() || !manifest.base_hash.has_value() ||
      *adapters->base_hash == *manifest.base_hash) {
    return absl::OkStatus();
  }
  return OtherBaseError(absl::StrCat("the training state in ", folder), adapters->base_folder, *adapters->base_hash,
                        *manifest.base_hash,
                        "Put that model back, or train the adapters that were saved with the state on in a run of "
                        "their own");
}

}  // namespace quartet
