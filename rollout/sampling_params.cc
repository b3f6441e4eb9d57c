#include "rollout/sampling_params.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace quartet {

absl::Status CheckSamplingParams(const SamplingParams& sampling, int64_t vocab_size) {
  if (!(sampling.temperature() >= 0) || !std::isfinite(sampling.temperature())) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.temperature is ", sampling.temperature(), "; allowed: finite and at least 0"));
  }
  if (sampling.top_k() < -1) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.top_k is ", sampling.top_k(), "; allowed: -1 or 0 (off), or at least 1"));
  }
  if (!(sampling.top_p() > 0 && sampling.top_p() <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.top_p is ", sampling.top_p(), "; allowed: above 0 and at most 1 (off)"));
  }
  if (sampling.max_new_tokens() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.max_new_tokens is ", sampling.max_new_tokens(), "; allowed: at least 1"));
  }
  if (sampling.n_samples() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.n_samples is ", sampling.n_samples(), "; allowed: at least 1"));
  }
  for (const int32_t id : sampling.stop_token_ids()) {
    if (id < 0 || id >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("sampling.stop_token_ids holds ", id, "; allowed: 0 to ", vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

}  // namespace quartet
