// Offers a rollout service more than it admits, for as long as asked, and says what came of every call.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"

namespace quartet {

struct RolloutLoad {
  std::string address;  // host:port of a rollout that serves version 0
  absl::Duration duration;
  // Calls that are always under way, each of one to four prompts with one to three samples each.
  int calls = 8;
  int longest_prompt = 8;  // tokens; lengths are even between 1 and this
  int longest_answer = 8;  // likewise
  // One call of so many is closed by the client before it ends.
  int cancel_one_of = 10;
  // A call that has not ended after so long is a mistake.
  absl::Duration patience = absl::Minutes(5);
  uint64_t seed = 0;
  // Processes whose resident memory is looked at twice a second; one that has none is a mistake.
  std::vector<pid_t> processes;
};

struct RolloutLoadReport {
  int64_t calls = 0;
  int64_t answered = 0;   // whole: each sample of each prompt once, behind its own prompt, with its log-probabilities
  int64_t refused = 0;    // RESOURCE_EXHAUSTED
  int64_t cancelled = 0;  // by us
  int64_t tokens = 0;     // of the answers
  // What else came, and how often.
  std::map<std::string, int64_t> mistakes;
  // Bytes of resident memory of all processes together.
  std::vector<int64_t> resident;
  ServiceInfo after;  // when no call is under way any more

  // The largest of the last half of the time less the largest of the quarter before it.
  int64_t resident_growth() const;
};

// Errors are those of reaching the service at all.
absl::StatusOr<RolloutLoadReport> OfferLoad(const RolloutLoad& load);

}  // namespace quartet
