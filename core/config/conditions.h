// What the checks of a configuration have in common: conditions on one field, and how a refusal reads. `field` is the
// field's path ("rollout.top_p").
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace quartet {

constexpr int64_t kMaxTokens = 1 << 24;
constexpr int64_t kMaxRanks = 65536;
// Below this, sampling is greedy and has no log-probabilities to train on.
constexpr double kGreedyTemperature = 1e-5;

// Why fields of a critic have no effect in a run without one.
constexpr char kNoCritic[] =
    "there is no critic: algorithm.advantage_estimator is not \"gae\", the one that has values of states";

// INVALID_ARGUMENT: the field has a value that it cannot have; has no effect, where it was set; has to be set.
absl::Status Bad(absl::string_view field, absl::string_view value, absl::string_view allowed);
absl::Status NoEffect(absl::string_view field, absl::string_view why);
absl::Status Missing(absl::string_view field, absl::string_view what);

absl::Status OneOf(absl::string_view field, const std::string& value, const std::vector<std::string>& allowed);
absl::Status Integer(absl::string_view field, int64_t value, int64_t low,
                     int64_t high = std::numeric_limits<int64_t>::max());
// Micro-batches are filled by sequences or by tokens: the refusal of both, where `sequences` is a leaf of `section`
// that counts the former; and that the longest sequence fits into a micro-batch of `value` tokens.
absl::Status BothLimits(absl::string_view section, absl::string_view sequences);
absl::Status TokenBudget(absl::string_view field, int64_t value, absl::string_view longest_field, int64_t longest);

// That an HTTP server may listen at `listen`, "host:port", which `field` is, with the key and the certificate of
// `section`: one that other machines reach needs both.
absl::Status HttpAddress(absl::string_view field, const std::string& listen, absl::string_view section,
                         bool has_api_key, bool has_cert, bool has_key);
template <typename Section>
absl::Status HttpAddress(absl::string_view field, const std::string& listen, absl::string_view name,
                         const Section& section) {
  return HttpAddress(field, listen, name, !section.api_key_file().empty(), !section.cert_file().empty(),
                     !section.key_file().empty());
}

}  // namespace quartet
