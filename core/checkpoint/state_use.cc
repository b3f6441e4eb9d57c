#include "core/checkpoint/state_use.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/model/adapter_base.h"
#include "core/model/lora.h"

namespace quartet {
namespace {

// Of the adapters whose state it is; r is 0 where it is of a whole model.
struct AdapterShape {
  int64_t r = 0;
  std::vector<std::string> targets;
};

AdapterShape ShapeOf(const StateManifest& manifest) {
  AdapterShape shape;
  for (const StateParameter& parameter : manifest.parameters) {
    const std::string product = ProductOfA(parameter.name);
    if (product.empty() || parameter.shape.empty()) continue;
    shape.r = parameter.shape.front();
    if (std::ranges::find(shape.targets, product) == shape.targets.end()) shape.targets.push_back(product);
  }
  return shape;
}

}  // namespace

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
                                      const std::optional<AdapterConfig>& adapters, const std::string& section) {
  const auto refuse = [&](const std::string& field, const auto& value, const std::string& has) {
    return absl::InvalidArgumentError(
        absl::StrCat(section, ".", field, ": ", value, " is not allowed; training goes on from ", folder, ", ", has));
  };
  const AdapterShape state = ShapeOf(manifest);
  if (!adapters.has_value()) {
    if (state.r == 0) return absl::OkStatus();
    return refuse("lora", "nothing",
                  absl::StrCat("which is of adapters: set lora.r to ", state.r, " and lora.target_modules to ",
                               absl::StrJoin(state.targets, ",")));
  }
  if (!manifest.parameters.empty()) {
    if (state.r == 0) return refuse("lora", "a value", "which is of a whole model: leave it out");
    if (state.r != adapters->r) {
      return refuse("lora.r", adapters->r, absl::StrCat("whose adapters have ", state.r, ": set it so"));
    }
    if (!std::ranges::is_permutation(state.targets, adapters->targets)) {
      return refuse("lora.target_modules", absl::StrJoin(adapters->targets, ","),
                    absl::StrCat("whose adapters are of ", absl::StrJoin(state.targets, ","), ": set it so"));
    }
  }
  if (manifest.adapter_scale.has_value() && *manifest.adapter_scale != adapters->scale) {
    return refuse("lora.alpha", adapters->alpha,
                  absl::StrCat("whose adapters are added times ", *manifest.adapter_scale,
                               " (alpha / r; with use_rslora alpha / sqrt(r)), and these would be times ",
                               adapters->scale, ": set it and lora.use_rslora as they were"));
  }
  if (!adapters->base_hash.has_value() || !manifest.base_hash.has_value() ||
      *adapters->base_hash == *manifest.base_hash) {
    return absl::OkStatus();
  }
  return OtherBaseError(absl::StrCat(section, ".load_checkpoint: the training state in ", folder),
                        adapters->base_folder, *adapters->base_hash, *manifest.base_hash,
                        "Put that model back, or train the adapters that were saved with the state on in a run of "
                        "their own");
}

}  // namespace quartet
