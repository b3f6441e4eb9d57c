// A program that this process starts, talks to over pipes, and never waits for longer than it says.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/files/fd.h"
#include "core/base/time/deadline.h"
#include "core/service/process/child_process.h"

namespace quartet {

// Of one process, by the operating system (setrlimit). 0: no limit but those of this process.
struct ProcessLimits {
  int64_t address_space_bytes = 0;
  int64_t cpu_seconds = 0;
  int64_t file_bytes = 0;  // each
  int64_t open_files = 0;
};

struct PipedProcessOptions {
  std::vector<std::string> argv;  // argv[0] is looked for in PATH
  std::string folder;             // it runs in; "": this process's
  ProcessLimits limits;
  // Descriptors of this process, which it finds under the same numbers.
  std::vector<int> kept_fds;
  // What it reads on its standard input is this descriptor; -1: what Write sends.
  int input_fd = -1;
  // What it writes to its standard error goes on to the descriptor `error_copy_fd`, which outlives it, and its end is
  // kept; or is thrown away. It is read while the program is waited for: one that writes much beside that waits.
  enum class Error { kKept, kThrownAway } error = Error::kKept;
  int error_copy_fd = STDERR_FILENO;
  bool no_environment = false;  // else this process's
  // Variables that it has beside these, or in the place of those of their names.
  std::map<std::string, std::string> environment;
  // For a process of root: a user other than root, which it becomes (with the group of the same number) before anything
  // else, without capabilities. It is given a user namespace of its own, which has no other user, for further processes
  // to enter, under a descriptor of `kept_fds` that is replaced by it.
  struct OtherUser {
    uid_t id;
    int namespace_fd;
  };
  std::optional<OtherUser> user;
};

// In a process group of its own, which is killed with this object, and with the thread that has started it: one thread
// owns a PipedProcess.
class PipedProcess {
 public:
  // RESOURCE_EXHAUSTED or UNAVAILABLE where this host has no descriptors, processes or memory left for it; NOT_FOUND or
  // another error where it cannot be executed, naming it.
  static absl::StatusOr<std::unique_ptr<PipedProcess>> Start(const PipedProcessOptions& options);
  ~PipedProcess();
  // Kills every one that there is, with its group: for a process that ends without destroying what it has.
  static void KillAll();
  PipedProcess(const PipedProcess&) = delete;
  PipedProcess& operator=(const PipedProcess&) = delete;

  // Sends `line` and a line end, and reads up to the next line end, which is left out. DEADLINE_EXCEEDED; CANCELLED
  // once `stop` is requested; RESOURCE_EXHAUSTED beyond `max_bytes`; ABORTED, saying how it has ended, where it has;
  // DATA_LOSS where it has written anything before it was sent all of `line`. After an error it is of no more use, but
  // where it owes a reply.
  absl::StatusOr<std::string> Ask(std::string_view line, size_t max_bytes, const Deadline& deadline,
                                  const std::stop_token& stop);
  // Has it end before it is killed: one that `waits_for_input` by the end of that; then, as any other at once, with its
  // group by SIGTERM. Each may take so long, and what it writes to its standard output meanwhile is thrown away. What
  // is left is killed.
  void End(absl::Duration patience, bool waits_for_input);
  // Whether it was asked, but its reply not waited for: that is the line that ReadLine reads.
  bool owes_reply() const { return owes_reply_; }

  // The last lines that it has written to its standard error, as far as they are kept.
  std::string LastErrorLines();
  // Keeps none of those that it has written until now.
  void ForgetErrorLines();
  // `status` and these lines. As it is where it is OK or CANCELLED, or nothing was written.
  absl::Status WithLastWords(const absl::Status& status);

  // The next line that it writes, without being asked. Errors as Ask, but DATA_LOSS.
  absl::StatusOr<std::string> ReadLine(size_t max_bytes, const Deadline& deadline, const std::stop_token& stop) {
    return Exchange("", max_bytes, deadline, stop);
  }

  struct Outcome {
    std::string output;
    ExitState exit;
  };
  // Sends `input`, as much as it takes, and the end of it; meanwhile reads all that it writes. Returns once it has
  // ended, though processes that it has left behind may still hold its output. Errors as Ask, but ABORTED and
  // DATA_LOSS. `input` is "" where PipedProcessOptions::input_fd is what it reads.
  absl::StatusOr<Outcome> Finish(std::string_view input, size_t max_bytes, const Deadline& deadline,
                                 const std::stop_token& stop);

 private:
  PipedProcess(pid_t pid, Fd input, Fd output, Fd error, int error_copy_fd)
      : pid_(pid),
        input_(std::move(input)),
        output_(std::move(output)),
        error_(std::move(error)),
        error_copy_fd_(error_copy_fd) {}
  absl::StatusOr<std::string> Exchange(std::string_view unsent, size_t max_bytes, const Deadline& deadline,
                                       const std::stop_token& stop);
  // Waits until the program can be read from or, with `writing`, written to; or, with neither, until it has ended.
  absl::Status Await(bool writing, const Deadline& deadline, const std::stop_token& stop, bool* readable,
                     bool* writable);
  absl::StatusOr<bool> ReadSome(std::string* to, size_t max_bytes);  // false: its output has ended
  absl::Status ReadRest(std::string* to, size_t max_bytes);          // what is there by now
  void WriteSome(std::string_view* left);
  void ReadErrors();
  void SignalGroup(int signal);  // as long as there is one that is its own
  bool HasEnded();               // with what it has left behind
  // Whether it has, or with `group` all of its group has, which it looks for that long, taking in what it writes.
  bool EndsWithin(absl::Duration patience, bool group);
  absl::StatusOr<ExitState> Reap(const Deadline& deadline, const std::stop_token& stop);

  const pid_t pid_;
  Fd input_;  // or none
  Fd output_;
  Fd error_;  // or none
  const int error_copy_fd_;
  std::string said_;  // the end of what came from it
  std::string read_;  // and not used yet
  bool owes_reply_ = false;
  std::optional<ExitState> exit_;
};

// `status` with the last words of a program behind it, where it has any. OK and CANCELLED stay as they are.
absl::Status WithLastWords(const absl::Status& status, const std::string& words);

}  // namespace quartet
