#include "core/service/process/piped_process.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <set>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "core/base/files/fd.h"
#include "core/base/status_macros.h"
#include "core/errors/shown.h"
#include "core/service/process/exec_array.h"

namespace quartet {
namespace {

// How often a request to stop, and the end of a program whose output has ended, are looked for.
constexpr int kLookMilliseconds = 20;

// Writing to a program that has ended is an error of the write, not a signal.
void BlockBrokenPipeSignal() {
  thread_local const bool blocked = [] {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    return pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0;
  }();
  (void)blocked;
}

bool MakePipe(Fd* read_end, Fd* write_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  read_end->Reset(ends[0]);
  write_end->Reset(ends[1]);
  return true;
}

bool SetLimit(decltype(RLIMIT_AS) resource, int64_t limit) {
  if (limit <= 0) return true;
  rlimit current;
  if (getrlimit(resource, &current) != 0) return false;
  const rlim_t value = std::min<rlim_t>(static_cast<rlim_t>(limit), current.rlim_max);
  const rlimit both = {value, value};
  return setrlimit(resource, &both) == 0;
}

// "NAME=VALUE" of each variable.
std::vector<std::string> EnvironmentOf(const PipedProcessOptions& options) {
  std::vector<std::string> variables;
  for (char** one = environ; !options.no_environment && *one != nullptr; ++one) {
    const std::string_view variable = *one;
    if (!options.environment.contains(std::string(variable.substr(0, variable.find('='))))) {
      variables.emplace_back(variable);
    }
  }
  for (const auto& [name, value] : options.environment) variables.push_back(absl::StrCat(name, "=", value));
  return variables;
}

// Whether any process of the group runs: one that has ended is in it until its parent, who may never, has taken note.
// True, too, where this process has no descriptors or memory left to find out.
bool Runs(pid_t group) {
  if (kill(-group, 0) != 0) return false;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    int64_t pid;
    if (!absl::SimpleAtoi(entry->path().filename().string(), &pid)) continue;
    std::ifstream file(entry->path() / "stat");
    // Others are of processes that are gone by now, or that only their owners see.
    if (!file.is_open() && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) return true;
    std::string stat;
    std::getline(file, stat);
    // "PID (NAME) STATE PARENT GROUP ...", of a name that may have anything in it.
    std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
    char state;
    pid_t parent, of_group;
    if (fields >> state >> parent >> of_group && of_group == group && state != 'Z' && state != 'X') return true;
  }
  return static_cast<bool>(error);
}

// Those of all that there are. Of a group that is gone another one may get the number: ends are taken note of with the
// mutex held, and a group that has gone then is taken out.
struct Groups {
  std::mutex mutex;
  std::set<pid_t> groups;
};
Groups& All() {
  static auto* const all = new Groups;
  return *all;
}

absl::Status Unasked() { return absl::DataLossError("it has written a line that nothing was asked for"); }

// Between fork and exec, as Child::Become; raw system calls, as the C library's would look for other threads.
struct UserChange {
  uid_t id;
  int namespace_fd;
  // "ID ID 1\n", for uid_map and gid_map.
  const char* map;

  bool Become() const {
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct capabilities[_LINUX_CAPABILITY_U32S_3];
    if (syscall(SYS_capget, &header, capabilities) != 0) return false;
    errno = EPERM;
    // Without it this process could not end that one.
    if ((capabilities[0].effective & (1u << CAP_KILL)) == 0) return false;
    if (syscall(SYS_setgroups, 0, nullptr) != 0 || syscall(SYS_setresgid, id, id, id) != 0 ||
        prctl(PR_SET_KEEPCAPS, 1) != 0 || syscall(SYS_setresuid, id, id, id) != 0) {
      return false;
    }
    // Some machines let nobody but those with capabilities make a user namespace. Without PR_SET_DUMPABLE its files in
    // /proc would be root's.
    for (__user_cap_data_struct& set : capabilities) set.effective = set.permitted;
    if (syscall(SYS_capset, &header, capabilities) != 0 || prctl(PR_SET_DUMPABLE, 1) != 0) return false;
    // A namespace lives as long as a descriptor of it, which this process has through CLONE_FILES.
    const pid_t maker = static_cast<pid_t>(syscall(SYS_clone, CLONE_NEWUSER | CLONE_FILES | SIGCHLD, 0, 0, 0, 0));
    if (maker == 0) _exit(MakeNamespace() ? 0 : errno);
    int status = 0;
    if (maker < 0 || waitpid(maker, &status, 0) != maker) return false;
    errno = WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
    if (errno != 0) return false;
    // Capabilities end with exec; a bwrap that is setuid is not to bring them back.
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
  }

 private:
  static bool Write(const char* path, const char* text) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const ssize_t length = static_cast<ssize_t>(std::string_view(text).size());
    const bool written = fd >= 0 && write(fd, text, length) == length;
    if (fd >= 0) close(fd);
    return written;
  }
  bool MakeNamespace() const {
    if (!Write("/proc/self/setgroups", "deny") || !Write("/proc/self/uid_map", map) ||
        !Write("/proc/self/gid_map", map)) {
      return false;
    }
    const int fd = open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC);
    return fd >= 0 && dup2(fd, namespace_fd) >= 0 && close(fd) == 0;
  }
};

// What the child does between fork and exec: async-signal-safe calls only. Returns on an error alone, with errno.
struct Child {
  char* const* argv;
  const char* folder;
  ProcessLimits limits;
  const int* kept_fds;
  size_t kept_count;
  int input, output, error;
  char* const* environment;
  const UserChange* user;
  pid_t parent;

  void Become() const {
    setpgid(0, 0);
    // First: with it goes what the next line asks for.
    if (user != nullptr && !user->Become()) return;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return;
    if (getppid() != parent) _exit(127);
    sigset_t none;
    sigemptyset(&none);
    for (int signal = 1; signal < NSIG; ++signal) {
      struct sigaction action = {};
      action.sa_handler = SIG_DFL;
      sigaction(signal, &action, nullptr);  // refused for SIGKILL and SIGSTOP
    }
    sigprocmask(SIG_SETMASK, &none, nullptr);
    if (dup2(input, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0) return;
    if (error >= 0 && dup2(error, STDERR_FILENO) < 0) return;
    for (size_t i = 0; i < kept_count; ++i) {
      const int flags = fcntl(kept_fds[i], F_GETFD);
      if (flags < 0 || fcntl(kept_fds[i], F_SETFD, flags & ~FD_CLOEXEC) != 0) return;
    }
    if (*folder != '\0' && chdir(folder) != 0) return;
    if (!SetLimit(RLIMIT_AS, limits.address_space_bytes) || !SetLimit(RLIMIT_CPU, limits.cpu_seconds) ||
        !SetLimit(RLIMIT_FSIZE, limits.file_bytes) || !SetLimit(RLIMIT_NOFILE, limits.open_files)) {
      return;
    }
    const rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    execvpe(argv[0], argv, environment);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<PipedProcess>> PipedProcess::Start(const PipedProcessOptions& options) {
  BlockBrokenPipeSignal();
  if (options.argv.empty()) return absl::InvalidArgumentError("no program to start");
  KeepEndsOfChildren();
  Fd child_input, our_input, our_output, child_output, error_read, error_write, our_error, child_error;
  const bool piped = options.input_fd < 0;
  if ((piped && !MakePipe(&child_input, &our_input)) || !MakePipe(&our_output, &child_output) ||
      !MakePipe(&error_read, &error_write)) {
    return absl::ErrnoToStatus(errno, "cannot make a pipe");
  }
  if (options.error == PipedProcessOptions::Error::kThrownAway) {
    child_error.Reset(open("/dev/null", O_WRONLY | O_CLOEXEC));
    if (child_error.get() < 0) return absl::ErrnoToStatus(errno, "cannot open /dev/null");
  } else if (!MakePipe(&our_error, &child_error)) {
    return absl::ErrnoToStatus(errno, "cannot make a pipe");
  } else {
    fcntl(our_error.get(), F_SETFL, O_NONBLOCK);
  }
  if (piped) fcntl(our_input.get(), F_SETFL, O_NONBLOCK);
  fcntl(our_output.get(), F_SETFL, O_NONBLOCK);

  std::vector<std::string> arguments = options.argv, variables = EnvironmentOf(options);
  const std::vector<char*> argv = ExecArray(arguments), environment = ExecArray(variables);
  const std::string map = options.user ? absl::StrCat(options.user->id, " ", options.user->id, " 1\n") : "";
  const UserChange user =
      options.user ? UserChange{options.user->id, options.user->namespace_fd, map.c_str()} : UserChange{};
  const Child child = {
      .argv = argv.data(),
      .folder = options.folder.c_str(),
      .limits = options.limits,
      .kept_fds = options.kept_fds.data(),
      .kept_count = options.kept_fds.size(),
      .input = piped ? child_input.get() : options.input_fd,
      .output = child_output.get(),
      .error = child_error.get(),
      .environment = environment.data(),
      .user = options.user ? &user : nullptr,
      .parent = getpid(),
  };
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot start ", options.argv[0]));
  if (pid == 0) {
    child.Become();
    const int error = errno;
    (void)!write(error_write.get(), &error, sizeof(error));
    _exit(127);
  }
  setpgid(pid, pid);  // whichever of the two comes first
  error_write.Reset();
  int error = 0;
  ssize_t got;
  while ((got = read(error_read.get(), &error, sizeof(error))) < 0 && errno == EINTR) {
  }
  if (got > 0) {
    waitpid(pid, nullptr, 0);
    return absl::ErrnoToStatus(
        error, absl::StrCat("cannot start ", options.argv[0],
                            options.folder.empty() ? "" : absl::StrCat(" in the folder ", options.folder)));
  }
  {
    const std::lock_guard lock(All().mutex);
    All().groups.insert(pid);
  }
  return std::unique_ptr<PipedProcess>(
      new PipedProcess(pid, std::move(our_input), std::move(our_output), std::move(our_error), options.error_copy_fd));
}

PipedProcess::~PipedProcess() {
  if (!exit_.has_value()) {
    kill(-pid_, SIGKILL);
    kill(pid_, SIGKILL);
    siginfo_t ended;
    while (waitid(P_PID, pid_, &ended, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
    }
  }
  const std::lock_guard lock(All().mutex);
  if (!exit_.has_value()) waitpid(pid_, nullptr, 0);
  All().groups.erase(pid_);
}

void PipedProcess::KillAll() {
  const std::lock_guard lock(All().mutex);
  for (const pid_t group : All().groups) kill(-group, SIGKILL);
}

void PipedProcess::SignalGroup(int signal) {
  const std::lock_guard lock(All().mutex);
  if (All().groups.contains(pid_)) kill(-pid_, signal);
  if (signal == SIGKILL && exit_.has_value()) All().groups.erase(pid_);
}

void PipedProcess::ReadErrors() {
  constexpr size_t kKeptBytes = 1000;
  std::array<char, 4096> buffer;
  while (error_.is_open()) {
    const ssize_t got = read(error_.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      error_.Reset();
      return;
    }
    (void)!write(error_copy_fd_, buffer.data(), got);
    said_.append(buffer.data(), got);
    if (said_.size() > 2 * kKeptBytes) said_.erase(0, said_.size() - kKeptBytes);
  }
}

std::string PipedProcess::LastErrorLines() {
  constexpr int kLines = 6;
  ReadErrors();
  return std::string(LastLines(said_, kLines));
}

absl::Status PipedProcess::WithLastWords(const absl::Status& status) {
  return quartet::WithLastWords(status, LastErrorLines());
}

void PipedProcess::ForgetErrorLines() {
  ReadErrors();
  said_.clear();
}

absl::Status PipedProcess::Await(bool writing, const Deadline& deadline, const std::stop_token& stop, bool* readable,
                                 bool* writable) {
  *readable = *writable = false;
  while (!*readable && !*writable) {
    if (stop.stop_requested()) return absl::CancelledError("the call has ended");
    if (deadline.passed()) return absl::DeadlineExceededError("it has taken too long");
    std::array<pollfd, 3> fds = {pollfd{output_.get(), POLLIN, 0}, pollfd{writing ? input_.get() : -1, POLLOUT, 0},
                                 pollfd{error_.get(), POLLIN, 0}};
    const int64_t left = absl::ToInt64Milliseconds(deadline.left()) + 1;
    if (poll(fds.data(), fds.size(), static_cast<int>(std::min<int64_t>(left, kLookMilliseconds))) < 0) {
      if (errno == EINTR) continue;
      return absl::ErrnoToStatus(errno, "cannot wait for a program");
    }
    *readable = fds[0].revents != 0;
    *writable = fds[1].revents != 0;
    if (fds[2].revents != 0) ReadErrors();
    if (!*readable && !*writable && HasEnded()) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> PipedProcess::ReadSome(std::string* to, size_t max_bytes) {
  std::array<char, 16384> buffer;
  const ssize_t got = read(output_.get(), buffer.data(), buffer.size());
  if (got == 0) return false;
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return true;
    return absl::ErrnoToStatus(errno, "cannot read from a program");
  }
  to->append(buffer.data(), got);
  if (to->size() > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it has written more than ", max_bytes, " bytes to its standard output"));
  }
  return true;
}

absl::Status PipedProcess::ReadRest(std::string* to, size_t max_bytes) {
  for (size_t before = to->size();; before = to->size()) {
    QUARTET_ASSIGN_OR_RETURN(const bool more, ReadSome(to, max_bytes));
    if (!more || to->size() == before) return absl::OkStatus();
  }
}

void PipedProcess::WriteSome(std::string_view* left) {
  const ssize_t sent = write(input_.get(), left->data(), left->size());
  if (sent > 0) left->remove_prefix(sent);
  // Its end is seen on its output.
  if (sent < 0 && errno != EAGAIN && errno != EINTR) *left = {};
}

bool PipedProcess::HasEnded() {
  if (exit_.has_value()) return true;
  const std::lock_guard lock(All().mutex);
  int status;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
  exit_ = ExitState::OfWait(status);
  // What it has left behind in its group goes with it.
  kill(-pid_, SIGKILL);
  All().groups.erase(pid_);
  return true;
}

absl::StatusOr<ExitState> PipedProcess::Reap(const Deadline& deadline, const std::stop_token& stop) {
  while (true) {
    ReadErrors();
    if (HasEnded()) return *exit_;
    if (stop.stop_requested()) return absl::CancelledError("the call has ended");
    if (deadline.passed()) return absl::DeadlineExceededError("it has taken too long");
    absl::SleepFor(absl::Milliseconds(1));
  }
}

absl::StatusOr<std::string> PipedProcess::Ask(std::string_view line, size_t max_bytes, const Deadline& deadline,
                                              const std::stop_token& stop) {
  return Exchange(absl::StrCat(absl::string_view(line.data(), line.size()), "\n"), max_bytes, deadline, stop);
}

absl::StatusOr<std::string> PipedProcess::Exchange(std::string_view left, size_t max_bytes, const Deadline& deadline,
                                                   const std::stop_token& stop) {
  BlockBrokenPipeSignal();
  if (!left.empty()) {
    // What it has written since its last reply is no reply to what comes now.
    QUARTET_ASSIGN_OR_RETURN(const bool more, ReadSome(&read_, max_bytes));
    if (more && !read_.empty()) return Unasked();
  }
  for (size_t seen = 0;;) {
    const size_t end = read_.find('\n', seen);
    seen = read_.size();
    if (end != std::string::npos) {
      if (!left.empty()) return Unasked();
      owes_reply_ = false;
      std::string reply = read_.substr(0, end);
      read_.erase(0, end + 1);
      return reply;
    }
    bool readable, writable;
    QUARTET_RETURN_IF_ERROR(Await(!left.empty(), deadline, stop, &readable, &writable));
    if (writable) WriteSome(&left);
    owes_reply_ = owes_reply_ || (writable && left.empty());
    bool more = true;
    if (readable) {
      QUARTET_ASSIGN_OR_RETURN(more, ReadSome(&read_, max_bytes));
    } else if (!writable) {
      // It may have written, and ended, since it was looked at.
      QUARTET_RETURN_IF_ERROR(ReadRest(&read_, max_bytes));
      more = read_.find('\n', seen) != std::string::npos;
    }
    if (!more) {
      QUARTET_ASSIGN_OR_RETURN(const ExitState exit, Reap(deadline, stop));
      return absl::AbortedError(absl::StrCat("it has ended: ", exit.Describe()));
    }
  }
}

absl::StatusOr<PipedProcess::Outcome> PipedProcess::Finish(std::string_view input, size_t max_bytes,
                                                           const Deadline& deadline, const std::stop_token& stop) {
  BlockBrokenPipeSignal();
  Outcome outcome;
  outcome.output = std::move(read_);
  for (bool more = true; more;) {
    if (input.empty()) input_.Reset();
    bool readable, writable;
    QUARTET_RETURN_IF_ERROR(Await(!input.empty(), deadline, stop, &readable, &writable));
    if (writable) WriteSome(&input);
    if (readable) {
      QUARTET_ASSIGN_OR_RETURN(more, ReadSome(&outcome.output, max_bytes));
    } else if (!writable) {
      QUARTET_RETURN_IF_ERROR(ReadRest(&outcome.output, max_bytes));
      more = false;
    }
  }
  QUARTET_ASSIGN_OR_RETURN(outcome.exit, Reap(deadline, stop));
  return outcome;
}

bool PipedProcess::EndsWithin(absl::Duration patience, bool group) {
  const Deadline deadline = Deadline::In(patience);
  while (true) {
    std::string unread;
    (void)ReadRest(&unread, std::numeric_limits<size_t>::max());
    ReadErrors();
    {
      const std::lock_guard lock(All().mutex);
      int status;
      if (!exit_.has_value() && waitpid(pid_, &status, WNOHANG) == pid_) exit_ = ExitState::OfWait(status);
      if (exit_.has_value() && kill(-pid_, 0) != 0 && errno == ESRCH) All().groups.erase(pid_);
    }
    if (exit_.has_value() && !(group && Runs(pid_))) return true;
    if (deadline.passed()) return false;
    absl::SleepFor(absl::Milliseconds(exit_.has_value() ? kLookMilliseconds : 1));
  }
}

void PipedProcess::End(absl::Duration patience, bool waits_for_input) {
  if (exit_.has_value()) return;
  input_.Reset();
  if (waits_for_input) EndsWithin(patience, /*group=*/false);
  SignalGroup(SIGTERM);
  EndsWithin(patience, /*group=*/true);
  if (exit_.has_value()) SignalGroup(SIGKILL);
}

absl::Status WithLastWords(const absl::Status& status, const std::string& words) {
  if (status.ok() || words.empty() || absl::IsCancelled(status)) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "; it has written last:\n", words));
}

}  // namespace quartet
