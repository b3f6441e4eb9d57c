#include "core/config/batches/call_sizes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/config/run_config.h"
#include "core/config/services.h"

namespace quartet {
namespace {

// Of a training sequence in memory: id, action and seven numbers, in arrays that grew by doubling; of one that is to be
// scored, its text twice.
constexpr double kBytesPerToken = 2 * (4 + 1 + 7 * 4);
constexpr double kBytesPerSequence = 4096;
// Of an answer's token whose text is told by itself: a string, and where it is, in a list that grew by doubling.
constexpr double kBytesPerTokenText = 32 + 16 + 2 * 8;

int64_t GeneratedAtOnce(const RunConfig& c) {
  return std::max<int64_t>(c.rollout().rollout_batch_size(), c.rollout().over_sampling_batch_size()) *
         c.rollout().n_samples_per_prompt();
}

}  // namespace

int64_t LargestCallBytes(const RunConfig& c) {
  const double tokens = static_cast<double>(LongestSequence(c));
  const bool has_texts =
      std::ranges::any_of(c.reward().source(), [](const RewardSource& source) { return source.token_rewards(); });
  const double texts = has_texts ? c.rollout().generate_max_len() * kBytesPerTokenText : 0;
  const double bytes = static_cast<double>(GeneratedAtOnce(c)) * (tokens * kBytesPerToken + texts + kBytesPerSequence);
  return static_cast<int64_t>(std::clamp(bytes, 0.0, static_cast<double>(int64_t{1} << 50)));
}

absl::Status CheckCallSizes(const RunConfig& c, int64_t evaluated) {
  const int64_t step = GeneratedAtOnce(c), most = std::max(step, evaluated);
  const std::string what = step >= evaluated ? absl::StrCat("a step generates ", step,
                                                            " sequences (rollout.over_sampling_batch_size * "
                                                            "n_samples_per_prompt)")
                                             : absl::StrCat("an evaluation generates ", evaluated,
                                                            " sequences (prompts * "
                                                            "n_samples_per_prompt)");
  const int64_t engines = c.services().rollout().ranks() / std::max(1, c.rollout().tensor_parallel_size());
  const int64_t room = engines * c.rollout().max_num_seqs() + c.rollout().max_waiting();
  if (most > room) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rollout.max_waiting: ", c.rollout().max_waiting(), " is not allowed; ", what, ", of which ",
        engines * c.rollout().max_num_seqs(), " can run (engines * rollout.max_num_seqs): it must be at least ",
        most - engines * c.rollout().max_num_seqs()));
  }
  for (const std::string& service : PpoServices(c)) {
    const ServicePlacement& p = PlacementOf(c, service);
    const int64_t items = service == "scorer" || service == "rollout" ? most : step;
    if (items > p.max_call_items()) {
      return absl::InvalidArgumentError(absl::StrCat("services.", service, ".max_call_items: ", p.max_call_items(),
                                                     " is not allowed; ", what, ", which come in one call"));
    }
    if (service != "rollout" && LargestCallBytes(c) > p.max_call_bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("services.", service, ".max_call_bytes: ", p.max_call_bytes(), " is not allowed; ", what,
                       ", which take up to ", LargestCallBytes(c), " bytes where all are as long as they may be"));
    }
  }
  return absl::OkStatus();
}

}  // namespace quartet
