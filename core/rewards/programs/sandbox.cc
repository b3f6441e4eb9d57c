#include "core/rewards/programs/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/files/fd.h"
#include "core/base/logging.h"
#include "core/base/random.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/data/json.h"
#include "core/rewards/programs/system_call_filter.h"
#include "core/service/process/piped_process.h"

namespace quartet {
namespace {

constexpr int64_t kDiskBytes = 16 << 20;
constexpr size_t kMostOutputBytes = 4 << 20;
constexpr size_t kMostMessageBytes = 32 << 20;  // between a judge and what it tests
constexpr int64_t kOpenFiles = 64;
// Threads, the first one and what waits for the sandbox's end outside of it.
constexpr int kTasks = 128;
constexpr int kSignals = 64;  // that wait to be taken
// Has no files and, as long as it is not root, no rights.
constexpr uid_t kNobody = 65534;
constexpr absl::Duration kLongestStart = absl::Seconds(60);

#include "core/rewards/programs/judging.inc"

// Sets the limits that count in the sandbox's own user namespace, and says that it stands, before anything of the
// program's own can happen.
constexpr char kBegin[] = R"(import resource, sys
for limit in (resource.RLIMIT_NPROC, resource.RLIMIT_SIGPENDING): resource.setrlimit(limit, (int(sys.argv.pop(1)),) * 2)
sys.stdout.write(sys.argv.pop(1) + "\n")
sys.stdout.flush()
)";

// Becomes the program.
constexpr char kRun[] = R"(
def run(source, name, scope):
    exec(compile(source, name, "exec"), scope)
with open("/run/answer.py", encoding="utf-8") as f: answer = f.read()
with open("/run/caller.py", encoding="utf-8") as f: caller = f.read()
scope = {"__name__": "__main__", "__builtins__": __builtins__}
if caller:  # classes look up their module
    import types
    module = sys.modules["answer"] = types.ModuleType("answer")
    scope = vars(module)
    scope["__builtins__"] = __builtins__
sys.argv = ["answer.py"]
try:
    run(answer, "answer.py", scope)
except SystemExit as end:
    if caller or end.code not in (None, 0): raise
if caller: run(caller, "caller.py", scope)
)";

// A file in memory, to be inherited.
absl::StatusOr<Fd> MemoryFile(const std::string& content) {
  Fd file(memfd_create("quartet", MFD_CLOEXEC));
  if (!file.is_open()) return absl::ErrnoToStatus(errno, "cannot make a file in memory");
  if (!WriteAll(file.get(), content)) return absl::ErrnoToStatus(errno, "cannot write to a file in memory");
  if (lseek(file.get(), 0, SEEK_SET) != 0) return absl::ErrnoToStatus(errno, "cannot rewind a file in memory");
  return file;
}

// How programs are kept from what is not theirs, by what the machine has.
struct Means {
  // This process is root: programs are handed over to kNobody, since nothing limits root's tasks, and the files of
  // /proc are root's.
  bool other_user = false;
  // The kernel counts tasks by user namespace (Linux 5.14), not all of the user's. Else there are no threads.
  bool threads = false;
};

// Whether this process's user namespace has that user.
bool Has(uid_t user) {
  std::ifstream map("/proc/self/uid_map");
  for (uint64_t inside, outside, count; map >> inside >> outside >> count;) {
    if (user >= inside && user - inside < count) return true;
  }
  return false;
}

const Means& TheMeans() {
  static const Means means = [] {
    utsname kernel;
    int64_t major = 0, minor = 0;
    if (uname(&kernel) == 0) {
      char* end = nullptr;
      major = strtol(kernel.release, &end, 10);
      if (*end == '.') minor = strtol(end + 1, nullptr, 10);
    }
    // Where a user namespace has root alone, that is another user outside of it.
    return Means{.other_user = geteuid() == 0 && Has(kNobody),
                 .threads = std::pair(major, minor) >= std::pair<int64_t, int64_t>(5, 14)};
  }();
  return means;
}

struct Inherited {
  const Fd &program, &caller, &filter, &user_namespace;
};

std::vector<std::string> Arguments(const Inherited& files, const std::string& driver, const std::string& mark) {
  std::vector<std::string> arguments = {"bwrap"};
  const auto add = [&](std::initializer_list<std::string> more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
  };
  if (TheMeans().other_user) {
    add({"--userns", absl::StrCat(files.user_namespace.get())});
  } else {
    add({"--unshare-user"});
  }
  add({"--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"});
  // Python is pid 1: there is nobody else in its namespace, least of all one that says how it has ended.
  add({"--as-pid-1", "--new-session", "--die-with-parent"});
  add({"--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", "/tmp", "--setenv", "LANG", "C.UTF-8"});
  add({"--setenv", "OMP_NUM_THREADS", "1", "--setenv", "OPENBLAS_NUM_THREADS", "1"});
  // The C library reserves 64 MiB of address space for each arena, and makes one for each of the first threads.
  add({"--setenv", "MALLOC_ARENA_MAX", "1"});
  add({"--ro-bind", "/usr", "/usr"});
  for (const char* folder : {"/bin", "/lib", "/lib64", "/etc/alternatives"}) add({"--ro-bind-try", folder, folder});
  add({"--proc", "/proc", "--remount-ro", "/proc"});
  for (const char* device : {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}) {
    add({"--dev-bind", device, device});
  }
  add({"--symlink", "/proc/self/fd", "/dev/fd"});
  for (const auto& [fd, name] :
       {std::pair(0, "/dev/stdin"), std::pair(1, "/dev/stdout"), std::pair(2, "/dev/stderr")}) {
    add({"--symlink", absl::StrCat("/proc/self/fd/", fd), name});
  }
  add({"--size", absl::StrCat(kDiskBytes), "--tmpfs", "/tmp"});
  add({"--ro-bind-data", absl::StrCat(files.program.get()), "/run/answer.py"});
  add({"--ro-bind-data", absl::StrCat(files.caller.get()), "/run/caller.py"});
  add({"--remount-ro", "/", "--chdir", "/tmp", "--uid", absl::StrCat(kNobody), "--gid", absl::StrCat(kNobody)});
  add({"--cap-drop", "ALL", "--hostname", "sandbox", "--seccomp", absl::StrCat(files.filter.get())});
  add({"--", "python3", "-I", "-B", "-c", driver, absl::StrCat(kTasks), absl::StrCat(kSignals), mark});
  return arguments;
}

// Python that runs `driver` in a sandbox, once that stands. `input` is on its standard input; nothing: what is asked.
absl::StatusOr<std::unique_ptr<PipedProcess>> Start(const std::string& driver, const std::string& program,
                                                    const std::string& caller, const std::optional<std::string>& input,
                                                    const SandboxLimits& limits, const std::stop_token& stop) {
  const std::string filter_code = SystemCallFilter(TheMeans().threads);
  if (filter_code.empty()) {
    return absl::FailedPreconditionError("sandboxes need a machine with x86-64 or ARM64 processors");
  }
  QUARTET_ASSIGN_OR_RETURN(const Fd program_file, MemoryFile(program));
  QUARTET_ASSIGN_OR_RETURN(const Fd input_file, MemoryFile(input.value_or("")));
  QUARTET_ASSIGN_OR_RETURN(const Fd caller_file, MemoryFile(caller));
  QUARTET_ASSIGN_OR_RETURN(const Fd filter_file, MemoryFile(filter_code));
  QUARTET_ASSIGN_OR_RETURN(const Fd user_namespace, MemoryFile(""));
  const std::string mark = RandomHexDigits(4);
  const PipedProcessOptions options = {
      .argv = Arguments({program_file, caller_file, filter_file, user_namespace}, absl::StrCat(kBegin, driver), mark),
      .limits = {.address_space_bytes = limits.memory_bytes,
                 .cpu_seconds = absl::ToInt64Seconds(absl::Ceil(limits.timeout, absl::Seconds(1))) + 1,
                 .file_bytes = kDiskBytes,
                 .open_files = kOpenFiles},
      .kept_fds = {program_file.get(), caller_file.get(), filter_file.get(), user_namespace.get()},
      .input_fd = input.has_value() ? input_file.get() : -1,
      .error = PipedProcessOptions::Error::kThrownAway,
      // /proc/1/environ is readable inside.
      .no_environment = true,
      .user = TheMeans().other_user ? std::optional(PipedProcessOptions::OtherUser{kNobody, user_namespace.get()})
                                    : std::nullopt,
  };
  QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<PipedProcess> running, PipedProcess::Start(options));
  // That the sandbox takes long to stand on a busy machine is not the program's doing.
  const absl::StatusOr<std::string> first = running->ReadLine(kMostOutputBytes, Deadline::In(kLongestStart), stop);
  if (absl::IsCancelled(first.status())) return first.status();
  if (!first.ok() || *first != mark) {
    return absl::UnavailableError(absl::StrCat("the sandbox has not started Python: ",
                                               first.ok() ? "it begins otherwise" : first.status().message()));
  }
  return running;
}

// From when it is made to its end: what a run may take.
class Time {
 public:
  explicit Time(const SandboxLimits& limits)
      : left_(limits.left),
        deadline_(Deadline::In(left_ == nullptr ? limits.timeout : std::min(limits.timeout, *left_))) {}
  ~Time() {
    if (left_ != nullptr) *left_ -= absl::FromChrono(Deadline::Clock::now() - begin_);
  }
  const Deadline& deadline() const { return deadline_; }

 private:
  absl::Duration* const left_;
  const Deadline::Clock::time_point begin_ = Deadline::Clock::now();
  const Deadline deadline_;
};

}  // namespace

absl::StatusOr<SandboxedRun> RunSandboxed(const std::string& program, const std::string& input,
                                          const std::string& caller, const SandboxLimits& limits,
                                          const std::stop_token& stop) {
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<PipedProcess> running,
                           Start(kRun, program, caller, input, limits, stop));
  const Time time(limits);
  const absl::StatusOr<PipedProcess::Outcome> outcome = running->Finish("", kMostOutputBytes, time.deadline(), stop);
  SandboxedRun run;
  if (absl::IsDeadlineExceeded(outcome.status())) {
    run.end = SandboxedRun::End::kTimedOut;
    return run;
  }
  if (absl::IsResourceExhausted(outcome.status())) {
    run.end = SandboxedRun::End::kTooMuchOutput;
    return run;
  }
  QUARTET_RETURN_IF_ERROR(outcome.status());
  run.end = outcome->exit.ok() ? SandboxedRun::End::kExited : SandboxedRun::End::kFailed;
  run.output = outcome->output;
  return run;
}

absl::StatusOr<bool> RunJudged(const std::string& program, const std::string& statements, const SandboxLimits& limits,
                               const std::stop_token& stop) {
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<PipedProcess> judge,
                           Start(k_judge, statements, "", std::nullopt, limits, stop));
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<PipedProcess> judged,
                           Start(k_program, program, "", std::nullopt, limits, stop));
  const Time time(limits);
  const Deadline& deadline = time.deadline();
  // They speak in turn, the judge first. Whatever of them ends, or says too much or nothing: the test is not passed.
  absl::StatusOr<std::string> said = judge->ReadLine(kMostMessageBytes, deadline, stop);
  while (said.ok() && said->starts_with("{")) {
    said = judged->Ask(*said, kMostMessageBytes, deadline, stop);
    if (said.ok()) said = judge->Ask(*said, kMostMessageBytes, deadline, stop);
  }
  if (absl::IsCancelled(said.status())) return said.status();
  if (!said.ok()) return false;
  constexpr absl::string_view kWrong = "wrong: ";
  if (said->starts_with(absl::StrCat("\"", kWrong))) {
    QUARTET_ASSIGN_OR_RETURN(const nlohmann::json text, ParseJson(*said, "the judge's line"));
    return absl::InvalidArgumentError(text.get<std::string>().substr(kWrong.size()));
  }
  return *said == "\"passed\"";
}

absl::Status CheckSandbox() {
  // Starts as many threads as it can.
  const std::string program = absl::StrCat(R"(
import threading
threading.stack_size(65536)
stop, started = threading.Event(), 0
try:
    while started < )",
                                           kTasks, R"(:
        threading.Thread(target=stop.wait, daemon=True).start()
        started += 1
except RuntimeError: pass
stop.set()
print(started))");
  const absl::StatusOr<SandboxedRun> run =
      RunSandboxed(program, "", "", {.timeout = absl::Seconds(30)}, std::stop_token());
  if (absl::IsNotFound(run.status())) {
    return absl::FailedPreconditionError(
        "code is run in a sandbox only, and bubblewrap (bwrap), which makes it, is not installed: apt-get install "
        "bubblewrap");
  }
  const Means& means = TheMeans();
  int threads = 0;
  std::string why = "python3 does not run there as it should";
  if (!run.ok()) {
    why = std::string(run.status().message());
  } else if (run->end == SandboxedRun::End::kTimedOut) {
    why = "python3 takes longer than 30 s for nothing";
  } else if (run->end == SandboxedRun::End::kExited && absl::SimpleAtoi(run->output, &threads)) {
    why = threads > 0 ? "nothing limits the threads of a program" : "no thread can be started";
    if (threads < kTasks && (threads > 0) == means.threads) {
      QUARTET_LOG(kInfo) << "code is tested in sandboxes, "
                         << (means.other_user ? absl::StrCat("as user ", kNobody, " in place of root")
                                              : absl::StrCat("as user ", geteuid()))
                         << ", with "
                         << (means.threads ? absl::StrCat("up to ", threads + 1, " threads each")
                                           : "no threads but a program's first: limits for each sandbox came with "
                                             "Linux 5.14");
      return absl::OkStatus();
    }
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "code is run in a sandbox only, and there can be none here: ", why,
      ". It needs /usr/bin/python3 and user namespaces: try `bwrap --unshare-all --ro-bind / / true`; where that "
      "fails, allow them (sysctl kernel.unprivileged_userns_clone=1, on Ubuntu also "
      "kernel.apparmor_restrict_unprivileged_userns=0; in a container, start it with --security-opt seccomp=unconfined "
      "or --privileged). Where the scorer is root it needs user 65534 and the capabilities CAP_SETUID, CAP_SETGID "
      "and CAP_KILL, or start it as another user"));
}

}  // namespace quartet
