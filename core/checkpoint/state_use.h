// Whether training can go on from a training state. LibTorch-free.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "core/checkpoint/state_folder.h"
#include "core/model/model_config.h"

namespace quartet {

// The kind of a state that is the average of TrainerConfig.ema_decay.
inline constexpr char kAverageKind[] = "ema";

// That a trainer with `optimizer` (as TrainerConfig.optim) and, if `has_average`, an average of the weights, can go on
// from the state in `folder`, whose manifest this is. INVALID_ARGUMENT names the option, in the section `section`
// ("actor"), what the state has and what is allowed.
absl::Status CheckGoesOnFrom(const StateManifest& manifest, const std::string& folder, std::string_view optimizer,
                             bool has_average, const std::string& section);

// That adapters which are trained belong to the model that the state's do, by its weights, and are added to it times
// the same. INVALID_ARGUMENT names the folders of both, and the hashes, or the factors. OK of whole models, and where
// the state does not say it.
absl::Status CheckStateOfSameAdapters(const StateManifest& manifest, const std::string& folder,
                                      const std::optional<AdapterConfig>& adapters);

}  // namespace quartet
