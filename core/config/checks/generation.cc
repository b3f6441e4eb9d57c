#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/config/address.h"
#include "core/config/checks/checks.h"
#include "core/config/checks/conditions.h"

namespace quartet {
namespace {

absl::Status CheckHttp(const HttpConfig& h) {
  if (h.listen().empty()) {
    return absl::InvalidArgumentError("rollout.http.listen is not set; it is host:port, such as 127.0.0.1:8000");
  }
  QUARTET_ASSIGN_OR_RETURN(const HostPort listen, Prefixed("rollout.http.listen", ParseHostPort(h.listen())));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.http.max_bodies_bytes", h.max_bodies_bytes(), int64_t{16} << 20));
  if (h.cert_file().empty() != h.key_file().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("rollout.http.", h.cert_file().empty() ? "cert_file" : "key_file",
                                                   " is not set; set both cert_file and key_file, or neither"));
  }
  if (IsLoopback(listen.host) || !(h.api_key_file().empty() || h.key_file().empty())) return absl::OkStatus();
  return Bad(
      "rollout.http.listen", absl::StrCat("\"", h.listen(), "\""),
      absl::StrCat("an address that other machines can reach needs api_key_file, cert_file and key_file, of which ",
                   h.api_key_file().empty() ? "api_key_file" : "cert_file and key_file",
                   h.api_key_file().empty() ? " is" : " are", " not set; or listen on 127.0.0.1"));
}

}  // namespace

absl::Status CheckRollout(const RolloutConfig& r) {
  QUARTET_RETURN_IF_ERROR(Integer("rollout.rollout_batch_size", r.rollout_batch_size(), 1));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.n_samples_per_prompt", r.n_samples_per_prompt(), 1));
  if (r.over_sampling_batch_size() < r.rollout_batch_size()) {
    return Bad("rollout.over_sampling_batch_size", absl::StrCat(r.over_sampling_batch_size()),
               absl::StrCat("it must be at least rollout.rollout_batch_size = ", r.rollout_batch_size()));
  }
  const int64_t sequences = int64_t{r.over_sampling_batch_size()} * r.n_samples_per_prompt();
  if (sequences > std::numeric_limits<int32_t>::max()) {
    return Bad("rollout.rollout_batch_size * rollout.n_samples_per_prompt", absl::StrCat(sequences),
               absl::StrCat("at most ", std::numeric_limits<int32_t>::max()));
  }
  QUARTET_RETURN_IF_ERROR(Integer("rollout.generate_max_len", r.generate_max_len(), 1, kMaxTokens));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.min_tokens", r.min_tokens(), 0, r.generate_max_len()));
  if (!(r.temperature() >= kGreedyTemperature) || !std::isfinite(r.temperature())) {
    return Bad(
        "rollout.temperature", absl::StrCat(r.temperature()),
        "training samples need a temperature of at least 1e-5 (below it decoding is greedy; eval.temperature may "
        "be 0)");
  }
  QUARTET_RETURN_IF_ERROR(Real("rollout.top_p", r.top_p(), 0, 1, /*open_low=*/true));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.top_k", r.top_k(), -1));
  QUARTET_RETURN_IF_ERROR(Dtype("rollout.dtype", r.dtype()));
  QUARTET_RETURN_IF_ERROR(Stage("rollout.zero_stage", r.zero_stage(), {0, 3}));
  if (r.has_kv_cache_bytes()) QUARTET_RETURN_IF_ERROR(Integer("rollout.kv_cache_bytes", r.kv_cache_bytes(), 1));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.block_size", r.block_size(), 1));
  if (r.max_model_len() != 0) {
    QUARTET_RETURN_IF_ERROR(Integer("rollout.max_model_len", r.max_model_len(), 2, 2 * kMaxTokens));
  }
  QUARTET_RETURN_IF_ERROR(Integer("rollout.max_num_seqs", r.max_num_seqs(), 1));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.max_num_batched_tokens", r.max_num_batched_tokens(), 1));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.max_waiting", r.max_waiting(), 0));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.max_calls", r.max_calls(), 1, 1 << 14));
  QUARTET_RETURN_IF_ERROR(Integer("rollout.tensor_parallel_size", r.tensor_parallel_size(), 1, kMaxRanks));
  if (r.tensor_parallel_size() > 1 && r.zero_stage() != 0) {
    return Bad("rollout.tensor_parallel_size", absl::StrCat(r.tensor_parallel_size()),
               absl::StrCat("rollout.zero_stage is ", r.zero_stage(),
                            ", which gathers whole matrices on every rank; with zero_stage 0 above 1 is allowed"));
  }
  for (int32_t id : r.stop_token_ids()) QUARTET_RETURN_IF_ERROR(Integer("rollout.stop_token_ids", id, 0));
  return r.has_http() ? CheckHttp(r.http()) : absl::OkStatus();
}

}  // namespace quartet
