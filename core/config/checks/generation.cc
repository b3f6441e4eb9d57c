#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/config/checks/checks.h"
#include "core/config/conditions.h"

namespace quartet {
namespace {

absl::Status CheckHttp(const HttpConfig& h) {
  if (h.listen().empty()) {
    return absl::InvalidArgumentError("rollout.http.listen is not set; it is host:port, such as 127.0.0.1:8000");
  }
  return HttpAddress("rollout.http.listen", h.listen(), "rollout.http", h);
}

}  // namespace

absl::Status CheckRollout(const RolloutConfig& r) {
  if (r.over_sampling_batch_size() < r.rollout_batch_size()) {
    return Bad("rollout.over_sampling_batch_size", absl::StrCat(r.over_sampling_batch_size()),
               absl::StrCat("it must be at least rollout.rollout_batch_size = ", r.rollout_batch_size()));
  }
  const int64_t sequences = int64_t{r.over_sampling_batch_size()} * r.n_samples_per_prompt();
  if (sequences > std::numeric_limits<int32_t>::max()) {
    return Bad("rollout.rollout_batch_size * rollout.n_samples_per_prompt", absl::StrCat(sequences),
               absl::StrCat("at most ", std::numeric_limits<int32_t>::max()));
  }
  QUARTET_RETURN_IF_ERROR(Integer("rollout.min_tokens", r.min_tokens(), 0, r.generate_max_len()));
  if (r.temperature() < kGreedyTemperature) {
    return Bad(
        "rollout.temperature", absl::StrCat(r.temperature()),
        "training samples need a temperature of at least 1e-5 (below it decoding is greedy; eval.temperature may "
        "be 0)");
  }
  if (r.max_model_len() != 0) {
    QUARTET_RETURN_IF_ERROR(Integer("rollout.max_model_len", r.max_model_len(), 2, 2 * kMaxTokens));
  }
  if (r.tensor_parallel_size() > 1 && r.zero_stage() != 0) {
    return Bad("rollout.tensor_parallel_size", absl::StrCat(r.tensor_parallel_size()),
               absl::StrCat("rollout.zero_stage is ", r.zero_stage(),
                            ", which gathers whole matrices on every rank; with zero_stage 0 above 1 is allowed"));
  }
  return r.has_http() ? CheckHttp(r.http()) : absl::OkStatus();
}

}  // namespace quartet
