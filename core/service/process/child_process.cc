#include "core/service/process/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/service/process/exec_array.h"

extern char** environ;

namespace quartet {
namespace {

constexpr char kParentFdName[] = "QUARTET_PARENT_FD";
// How often it is asked whether a command is still waited for.
constexpr absl::Duration kShellPoll = absl::Milliseconds(50);

std::vector<std::string> MakeEnvironment(const ChildProcessOptions& options, int parent_fd) {
  std::map<std::string, std::string> variables;
  for (char** e = environ; *e != nullptr; ++e) {
    const char* equals = strchr(*e, '=');
    if (equals != nullptr) variables[std::string(*e, equals - *e)] = equals + 1;
  }
  for (const std::string& name : options.removed_environment) variables.erase(name);
  for (const auto& [name, value] : options.environment) variables[name] = value;
  variables[kParentFdName] = absl::StrCat(parent_fd);
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables) lines.push_back(absl::StrCat(name, "=", value));
  return lines;
}

}  // namespace

void KeepEndsOfChildren() {
  struct sigaction action = {};
  if (sigaction(SIGCHLD, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) signal(SIGCHLD, SIG_DFL);
}

std::vector<std::string> ShellArguments(const std::string& command) { return {"/bin/sh", "-c", command}; }

absl::StatusOr<ShellResult> RunInShell(const std::string& command, absl::Duration timeout,
                                       const std::function<absl::Status()>& proceed) {
  // No pipe: whatever keeps one open would be waited for.
  const Fd output(memfd_create("output", MFD_CLOEXEC));
  if (!output.is_open()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot run ", command));
  const std::string path = absl::StrCat("/proc/self/fd/", output.get());
  QUARTET_ASSIGN_OR_RETURN(
      const std::unique_ptr<ChildProcess> shell,
      ChildProcess::Start({.argv = ShellArguments(command), .log_file = path, .own_process_group = true}));
  const Deadline deadline = Deadline::In(timeout);
  std::optional<ExitState> end;
  absl::Status stopped;
  while (stopped.ok() && !(end = shell->Wait(std::min(kShellPoll, deadline.left()))).has_value()) {
    stopped = proceed();
    if (stopped.ok() && deadline.passed()) {
      stopped = absl::DeadlineExceededError(
          absl::StrCat(command, " has not ended after ", absl::FormatDuration(timeout), ", and is killed"));
    }
  }
  if (!stopped.ok()) {
    kill(-shell->pid(), SIGKILL);
    return stopped;
  }
  QUARTET_ASSIGN_OR_RETURN(std::string said, ReadFile(path));
  absl::StripTrailingAsciiWhitespace(&said);
  return ShellResult{.output = std::move(said), .end = *end};
}

ExitState ExitState::OfWait(int wait_status) {
  ExitState state;
  if (WIFSIGNALED(wait_status)) {
    state.signal = WTERMSIG(wait_status);
  } else {
    state.code = WEXITSTATUS(wait_status);
  }
  return state;
}

std::string ExitState::Describe() const {
  if (signal == 0) return absl::StrCat("exit code ", code);
  const char* name = sigabbrev_np(signal);
  return absl::StrCat("killed by ", name == nullptr ? "" : absl::StrCat("SIG", name, " "), "(signal ", signal, ")",
                      signal == SIGKILL ? ": out of memory?" : "");
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const ChildProcessOptions& options) {
  if (options.argv.empty()) return absl::InvalidArgumentError("no program to start");
  KeepEndsOfChildren();
  const std::string& program = options.argv[0];
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make a socket");
  }
  Fd childs_stream(ends[0]), stream(ends[1]);
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  Fd error_read(ends[0]), error_write(ends[1]);  // closes when the child has become the program; else holds errno
  Fd log;
  if (!options.log_file.empty()) {
    log.Reset(open(options.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!log.is_open()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open the log ", options.log_file));
  }

  // Between fork and exec only async-signal-safe calls are allowed: everything is made ready before.
  std::vector<std::string> arguments = options.argv;
  std::vector<std::string> environment = MakeEnvironment(options, childs_stream.get());
  const std::vector<char*> argv = ExecArray(arguments);
  const std::vector<char*> envp = ExecArray(environment);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const int core : options.cores) {
    if (core >= 0 && core < CPU_SETSIZE) CPU_SET(core, &cores);
  }

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot start ", program));
  if (pid == 0) {
    if (!options.heeds_parent) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);  // it was gone before
    }
    if (options.own_process_group) setpgid(0, 0);
    // Where none of them is there any more it runs where this process does.
    if (!options.cores.empty()) sched_setaffinity(0, sizeof(cores), &cores);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    // Where SIGHUP is ignored it stays so.
    for (int s : {SIGINT, SIGTERM, SIGPIPE, SIGCHLD, SIGXFSZ}) signal(s, SIG_DFL);
    fcntl(childs_stream.get(), F_SETFD, 0);
    if (log.is_open()) {
      dup2(log.get(), STDOUT_FILENO);
      dup2(log.get(), STDERR_FILENO);
    }
    execve(program.c_str(), argv.data(), envp.data());
    const int error = errno;
    (void)!write(error_write.get(), &error, sizeof(error));
    _exit(127);
  }

  error_write.Reset();
  int error = 0;
  ssize_t n;
  do {
    n = read(error_read.get(), &error, sizeof(error));
  } while (n < 0 && errno == EINTR);
  if (n == sizeof(error)) {
    waitpid(pid, nullptr, 0);
    return absl::ErrnoToStatus(error, absl::StrCat("cannot run ", program));
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(pid, std::move(stream)));
}

ChildProcess::~ChildProcess() { Terminate(absl::Seconds(3)); }

std::optional<ExitState> ChildProcess::Wait(absl::Duration timeout) {
  const Deadline deadline = Deadline::In(timeout);
  absl::Duration pause = absl::Milliseconds(1);
  while (!exit_.has_value()) {
    int wait_status = 0;
    const pid_t ended = waitpid(pid_, &wait_status, WNOHANG);
    if (ended == pid_) {
      exit_ = ExitState::OfWait(wait_status);
      break;
    }
    if (deadline.passed()) return std::nullopt;
    absl::SleepFor(std::min(pause, deadline.left()));
    pause = std::min(2 * pause, absl::Milliseconds(20));
  }
  return exit_;
}

void ChildProcess::Signal(int signal) {
  // Until its end is collected by Wait its number is not given to another process.
  if (!exit_.has_value()) kill(pid_, signal);
}

void ChildProcess::SendReason(const std::string& reason) {
  // A child that has ended, or reads nothing, receives nothing.
  (void)!send(parent_stream_.get(), reason.data(), reason.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::string ChildProcess::Said() {
  char text[1024];
  const ssize_t size = recv(parent_stream_.get(), text, sizeof(text), MSG_DONTWAIT);
  return std::string(text, std::max<ssize_t>(size, 0));
}

ExitState ChildProcess::Terminate(absl::Duration grace) {
  if (!Poll().has_value()) {
    Signal(SIGTERM);
    if (!Wait(grace).has_value()) {
      Signal(SIGKILL);
      Wait(absl::InfiniteDuration());
    }
  }
  return *exit_;
}

}  // namespace quartet
