// Rewards by programs of the user's that read questions as lines of JSON and answer each with a line.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/rewards/reward.h"

namespace quartet {

struct CommandOptions {
  std::string command;                         // for /bin/sh -c
  std::string folder;                          // it runs in
  absl::Duration timeout = absl::Seconds(30);  // of one line; for the first of a process, with its start
  int64_t memory_limit_bytes = 0;              // address space; 0: none
  bool in_lists = false;                       // a line has the answers of one call of Score, not one alone
  bool token_rewards = false;                  // it is told the tokens, and may give each a reward
};

// A process for each thread that calls Score, started when it is first needed; one that fails is killed, and another
// takes its place with the next answer. A thread that calls Score lives as long as the function does: a process ends
// with the thread that has started it.
//
// The first process is started here, by the calling thread, which is to live as long as the function does, and looked
// at for a moment; it loads what it needs while nothing is asked yet, and answers the first question. INVALID_ARGUMENT,
// here, by Check() and by the first Score, with what it has written last: it has ended, or has written a line, before
// it was asked anything.
absl::StatusOr<std::unique_ptr<RewardFunction>> NewCommand(const CommandOptions& options);

}  // namespace quartet
