// A process that this one started and that does not outlive it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/files/fd.h"

namespace quartet {

// How a process ended.
struct ExitState {
  int code = 0;    // when signal is 0
  int signal = 0;  // 0: it exited by itself
  // Of what waitpid gives.
  static ExitState OfWait(int wait_status);
  bool ok() const { return code == 0 && signal == 0; }
  // "exit code 1", "killed by SIGTERM (signal 15)", "killed by SIGKILL (signal 9): out of memory?".
  std::string Describe() const;
};

// The arguments, the program's path first, that have the shell run `command`.
std::vector<std::string> ShellArguments(const std::string& command);

// What a command has written to standard output and error, and how its shell ended.
struct ShellResult {
  std::string output;  // without blanks at its end
  ExitState end;
};

// Waits for `command`, of the shell. One that has not ended after `timeout` is killed, with what it has started:
// DEADLINE_EXCEEDED. So it is where `proceed`, which is asked again and again, has an error, which is returned. Other
// errors: no shell can be started.
absl::StatusOr<ShellResult> RunInShell(const std::string& command, absl::Duration timeout,
                                       const std::function<absl::Status()>& proceed = absl::OkStatus);

struct ChildProcessOptions {
  // The program's path, then its arguments.
  std::vector<std::string> argv;
  // Added to this process's environment.
  std::map<std::string, std::string> environment;
  // Taken from it.
  std::vector<std::string> removed_environment;
  // Where standard output and error are appended to. Empty: this process's own.
  std::string log_file;
  // Those that it may run on. Empty: this process's own.
  std::vector<int> cores;
  // Its own process group, so that Ctrl-C in a terminal reaches only us.
  bool own_process_group = false;
  // Whether the program leaves by itself once its parent is gone, as ours do that have a StopSignal. Else it is killed
  // then, and with the thread that has started it.
  bool heeds_parent = false;
};

// Lets this process see its children end where whoever started it has it ignore SIGCHLD: the kernel would throw their
// exit codes away, and no one who waits for one would ever be told.
void KeepEndsOfChildren();

// The child finds in QUARTET_PARENT_FD the descriptor of a stream that closes when this object or this process is gone;
// programs that heed it leave then, or when a reason to leave comes on it, and say on it why they leave.
//
// One thread at a time.
class ChildProcess {
 public:
  // NOT_FOUND or another error that names the program or the log file; also where the program cannot be executed.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const ChildProcessOptions& options);
  // Terminates it, with a grace of 3 s.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }

  // Its end, as soon as it has ended; nothing if it runs.
  std::optional<ExitState> Poll() { return Wait(absl::ZeroDuration()); }
  std::optional<ExitState> Wait(absl::Duration timeout);

  // No effect once it has ended.
  void Signal(int signal);

  // Why it should leave, a sentence, for what it still has to say; to be followed by a signal. Once.
  void SendReason(const std::string& reason);

  // What the child has said of its own end (StopSignal::Tell), once; "" where it has said nothing.
  std::string Said();

  // SIGTERM, then SIGKILL after `grace`. Returns its end.
  ExitState Terminate(absl::Duration grace);

 private:
  ChildProcess(pid_t pid, Fd stream) : pid_(pid), parent_stream_(std::move(stream)) {}
  pid_t pid_;
  Fd parent_stream_;
  std::optional<ExitState> exit_;
};

}  // namespace quartet
