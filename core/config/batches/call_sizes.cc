#include "core/config/batches/call_sizes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/config/programs.h"
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

bool LearnsFromRows(const RunConfig& c) { return c.has_sft() || c.has_preference(); }

// Of so many sequences in memory.
int64_t BytesOf(const RunConfig& c, int64_t sequences) {
  double each = 0;
  if (LearnsFromRows(c)) {
    each = TrainerOf(c, LearningSection(ProgramOfRun(c))).max_len() * kBytesPerToken;
  } else {
    const bool has_texts =
        std::ranges::any_of(c.reward().source(), [](const RewardSource& source) { return source.token_rewards(); });
    each = static_cast<double>(LongestSequence(c)) * kBytesPerToken +
           (has_texts ? c.rollout().generate_max_len() * kBytesPerTokenText : 0);
  }
  const double bytes = static_cast<double>(sequences) * (each + kBytesPerSequence);
  return static_cast<int64_t>(std::clamp(bytes, 0.0, static_cast<double>(int64_t{1} << 50)));
}

// Calls of a service, at their largest.
struct Calls {
  int64_t sequences = 0;
  std::string what;  // brings them
};

absl::Status CheckItems(const RunConfig& c, const std::string& service, const Calls& calls) {
  const int64_t most = PlacementOf(c, service).max_call_items();
  if (calls.sequences <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("services.", service, ".max_call_items: ", most, " is not allowed; ",
                                                 calls.what, ", which come in one call"));
}

absl::Status CheckBytes(const RunConfig& c, const std::string& service, const Calls& calls) {
  const int64_t most = PlacementOf(c, service).max_call_bytes(), bytes = BytesOf(c, calls.sequences);
  if (bytes <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("services.", service, ".max_call_bytes: ", most, " is not allowed; ",
                                                 calls.what, ", which take up to ", bytes,
                                                 " bytes where all are as long as they may be"));
}

// Of an evaluation's scores.
absl::Status CheckScoredBytes(const RunConfig& c, const Calls& calls) {
  return PlacementOf(c, "scorer").max_call_bytes() >= kMostCallBytes ? absl::OkStatus()
                                                                     : CheckBytes(c, "scorer", calls);
}

absl::Status CheckWaiting(const RunConfig& c, const Calls& calls) {
  const int64_t engines = c.services().rollout().ranks() / std::max(1, c.rollout().tensor_parallel_size());
  const int64_t running = engines * c.rollout().max_num_seqs();
  if (calls.sequences <= running + c.rollout().max_waiting()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "rollout.max_waiting: ", c.rollout().max_waiting(), " is not allowed; ", calls.what, ", of which ", running,
      " can run (engines * rollout.max_num_seqs): it must be at least ", calls.sequences - running));
}

Calls CallsOfStep(const RunConfig& c) {
  const int64_t sequences = MostSequencesOfStep(c);
  return {sequences, absl::StrCat("a step generates ", HasAgent(c) ? "up to " : "", sequences,
                                  " sequences (rollout.over_sampling_batch_size * n_samples_per_prompt",
                                  HasAgent(c) ? " * agent.max_turns)" : ")")};
}

Calls CallsOfEvaluation(int64_t sequences) {
  return {sequences,
          absl::StrCat("an evaluation generates ", sequences, " sequences (prompts * n_samples_per_prompt)")};
}

// What the rollout has at the same time: `calls`, or a turn of each of an agent's episodes.
Calls InRollout(const RunConfig& c, const Calls& calls) {
  if (!HasAgent(c)) return calls;
  return {c.agent().processes(),
          absl::StrCat(c.agent().processes(), " episodes (agent.processes) ask for a sequence at the same time each")};
}

// Of a run that learns from rows.
Calls CallsOfRows(const RunConfig& c) {
  const int64_t rows = c.train().train_batch_size();
  if (c.has_sft()) return {rows, absl::StrCat("a step learns from ", rows, " sequences (train.train_batch_size)")};
  if (!c.preference().eval_data().empty() && rows < kPairsAtATime) {
    return {2 * kPairsAtATime, absl::StrCat("held-out pairs are judged ", kPairsAtATime, " at a time, which are ",
                                            2 * kPairsAtATime, " sequences")};
  }
  return {2 * rows, absl::StrCat("a step learns from ", 2 * rows, " sequences (2 * train.train_batch_size)")};
}

}  // namespace

int64_t LongestSequence(const RunConfig& c) {
  return HasAgent(c) && c.actor().has_max_len() ? c.actor().max_len() : LongestTurn(c);
}

int64_t LongestPrompt(const RunConfig& c) { return HasAgent(c) ? LongestSequence(c) - 1 : c.data().prompt_max_len(); }

int64_t MostActions(const RunConfig& c) {
  if (!HasAgent(c)) return c.rollout().generate_max_len();
  return std::clamp<int64_t>(MostSequencesOfAnswer(c) * c.rollout().generate_max_len(), 1,
                             std::max<int64_t>(1, LongestSequence(c) - 1));
}

int64_t MostSequencesOfAnswer(const RunConfig& c) { return HasAgent(c) ? std::max(1, c.agent().max_turns()) : 1; }

int64_t MostSequencesOfStep(const RunConfig& c) { return GeneratedAtOnce(c) * MostSequencesOfAnswer(c); }

int64_t LargestCallBytes(const RunConfig& c) {
  return BytesOf(c, LearnsFromRows(c) ? CallsOfRows(c).sequences : MostSequencesOfStep(c));
}

absl::Status CheckCallSizes(const RunConfig& c, int64_t evaluated) {
  const Calls step = CallsOfStep(c);
  const Calls most = step.sequences >= evaluated ? step : CallsOfEvaluation(evaluated);
  QUARTET_RETURN_IF_ERROR(CheckWaiting(c, InRollout(c, most)));
  for (const std::string& service : PpoServices(c)) {
    QUARTET_RETURN_IF_ERROR(CheckItems(c, service,
                                       service == "scorer"    ? most
                                       : service == "rollout" ? InRollout(c, most)
                                                              : step));
    if (service != "rollout") QUARTET_RETURN_IF_ERROR(CheckBytes(c, service, step));
  }
  return CheckScoredBytes(c, most);
}

absl::Status CheckEvaluationCalls(const RunConfig& c, int64_t evaluated) {
  const Calls calls = CallsOfEvaluation(evaluated);
  QUARTET_RETURN_IF_ERROR(CheckWaiting(c, InRollout(c, calls)));
  QUARTET_RETURN_IF_ERROR(CheckItems(c, "rollout", InRollout(c, calls)));
  QUARTET_RETURN_IF_ERROR(CheckItems(c, "scorer", calls));
  return CheckScoredBytes(c, calls);
}

absl::Status CheckRowCalls(const RunConfig& c) {
  const Calls calls = CallsOfRows(c);
  for (const std::string& service : ServicesOf(ProgramOfRun(c), c)) {
    QUARTET_RETURN_IF_ERROR(CheckItems(c, service, calls));
    QUARTET_RETURN_IF_ERROR(CheckBytes(c, service, calls));
  }
  return absl::OkStatus();
}

}  // namespace quartet
