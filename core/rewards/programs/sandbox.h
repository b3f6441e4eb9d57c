// Programs that models have written, run where they can do no harm: bubblewrap's namespaces, a filter of system calls,
// and the operating system's limits.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace quartet {

struct SandboxLimits {
  absl::Duration timeout = absl::Seconds(10);  // once the sandbox stands
  int64_t memory_bytes = int64_t{1} << 30;     // address space
  // Where set, what several runs, one after the other, may take together: a run ends when none is left of it, and what
  // the run has taken is subtracted from it.
  absl::Duration* left = nullptr;
};

struct SandboxedRun {
  enum class End {
    kExited,  // by itself, with exit code 0
    kFailed,  // with another, or by a signal (too much memory, a forbidden call)
    kTimedOut,
    kTooMuchOutput,
  };
  End end = End::kFailed;
  std::string output;  // what it has written to standard output; not where it was too much or took too long
};

// OK where programs can be run, the log then says as which user and with how many threads; else FAILED_PRECONDITION
// with what is missing and the cure. There is no other, weaker way to run them.
absl::Status CheckSandbox();

// Runs `program`, Python source, with `input` on its standard input; with `caller`, as a module, behind which `caller`
// runs in its globals. It has no network, sees /usr, /bin and /lib to read and an empty /tmp of 16 MiB in memory to
// write, no other file, no environment and no other process; it cannot start one, and has at most 64 files open and 128
// threads (before Linux 5.14: one). Its user is never root. Its standard error is thrown away. DEADLINE_EXCEEDED is not
// an error but an end; errors are of the sandbox itself: UNAVAILABLE, or CANCELLED once `stop` is requested. Thread
// safe.
absl::StatusOr<SandboxedRun> RunSandboxed(const std::string& program, const std::string& input,
                                          const std::string& caller, const SandboxLimits& limits,
                                          const std::stop_token& stop);

// Whether `statements`, Python source, run to their end, where what they name and do not define is `program`'s. Each of
// the two has a sandbox of its own, as above: the program learns what its functions are called with, nothing of what
// the statements make of the result. Data goes between them by value (judging/values.py), 32 MiB at a time; other
// objects stay where they are, and can be called, iterated, and asked for their members. INVALID_ARGUMENT where the
// statements are no Python; other errors as above. Thread safe.
absl::StatusOr<bool> RunJudged(const std::string& program, const std::string& statements, const SandboxLimits& limits,
                               const std::stop_token& stop);

}  // namespace quartet
