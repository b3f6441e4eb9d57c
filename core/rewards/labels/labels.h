// What sources of rewards read of a row, before there is any answer. gRPC-free and LibTorch-free.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/rewards/reward.h"
#include "proto/run_config.pb.h"

namespace quartet {

// The figure of sources with a reasoning_delimiter (ScoreReply.extra_logs, behind the source's name and "/"): 1 for an
// answer without the delimiter, which is worth 0 and the source was not asked for, else 0.
inline constexpr char kUnfinishedReasoning[] = "unfinished_reasoning";

// Whether the source is for prompts from `prompt_source` (reward.source.only).
bool IsFor(const RewardSource& source, const std::string& prompt_source);

// Whether any source is told answers' tokens, and may give each a reward (reward.source.token_rewards).
bool GivesTokenRewards(const RewardConfig& config);

// Whether any source adds to the rewards of answers to prompts from `prompt_source`: neither a gate nor of weight 0.
bool AnyAdds(const RewardConfig& config, const std::string& prompt_source);

// INVALID_ARGUMENT: there are sources, but none that is no gate is for prompts from `prompt_source`, whose answers
// would all be worth 0 without a word of why. One of weight 0 is enough: it says that they are to be judged, and that
// is all. OK where an agent says what they are worth.
absl::Status CheckAnyIsFor(const RunConfig& config, const std::string& prompt_source);

// Reads labels as the sources that compare with them do. Thread safe.
class LabelReader {
 public:
  // Of a resolved configuration. Errors name the field.
  static absl::StatusOr<LabelReader> Create(const RunConfig& config);

  // INVALID_ARGUMENT: that of CheckAnyIsFor, or a source that is for the prompt cannot read the label, which would end
  // the run with the first answer. What takes a sandbox to find out (tests that are no Python) is not found.
  absl::Status Check(const std::string& label, const std::string& prompt_source) const;

 private:
  struct Source {
    RewardSource options;
    std::unique_ptr<RewardFunction> function;  // null: reads no label
  };
  RunConfig config_;
  std::vector<Source> sources_;
};

}  // namespace quartet
