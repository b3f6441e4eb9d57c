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

// That the state is of what is trained: of a whole model, or of adapters of the same rank and the same products, which
// are added times the same to the same model. INVALID_ARGUMENT names the option, in the section `section`, what it is
// and what the state has. What the state does not say is not held against it.
absl::Status CheckStateOfSameAdapters(const StateManifest& manifest, const std::string& folder,
                                      const std::optional<AdapterConfig>& adapters, const std::string& section);

}  // namespace quartet
