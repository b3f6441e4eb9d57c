#include "core/rl/pairs/pair_loss_options.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace quartet {

absl::Status CheckPreferenceLossOptions(const PreferenceLossOptions& options) {
  if (!(options.beta > 0) || !std::isfinite(options.beta)) {
    return absl::InvalidArgumentError(absl::StrCat("beta is ", options.beta, "; it must be finite and above 0"));
  }
  if (!(options.label_smoothing >= 0 && options.label_smoothing < 0.5)) {
    return absl::InvalidArgumentError(
        absl::StrCat("label_smoothing is ", options.label_smoothing, "; it must be at least 0 and below 0.5"));
  }
  if (options.kind == PreferenceLossKind::kIpo && options.label_smoothing != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("label_smoothing is ", options.label_smoothing, "; it has no effect with IPO, so it must be 0"));
  }
  return absl::OkStatus();
}

}  // namespace quartet
