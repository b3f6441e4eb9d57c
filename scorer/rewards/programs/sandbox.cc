#include "scorer/rewards/programs/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"
#include "scorer/rewards/programs/piped_process.h"
#include "scorer/rewards/programs/system_call_filter.h"

namespace quartet {
namespace {

constexpr int64_t kDiskBytes = 16 << 20;
constexpr size_t kMostOutputBytes = 4 << 20;
constexpr int64_t kOpenFiles = 64;
constexpr absl::Duration kLongestStart = absl::Seconds(60);

#include "scorer/rewards/programs/judging.inc"

// Says that the sandbox stands, before anything of the program's own can happen.
constexpr char kBegin[] = R"(import sys
sys.stdout.write(sys.argv.pop(1) + "\n")
sys.stdout.flush()
)";

// Becomes the program.
constexpr char kRun[] = R"(
def run(source, name, scope):
    exec(compile(source, name, "exec"), scope)
with open("/run/answer.py", encoding="utf-8") as f: answer = f.read()
with open("/run/caller.py", encoding="utf-8") as f: caller = f.read()
scope = {"__name__": "answer" if caller else "__main__", "__builtins__": __builtins__}
sys.argv = ["answer.py"]
try:
    run(answer, "answer.py", scope)
except SystemExit as end:
    if caller or end.code not in (None, 0): raise
if caller: run(caller, "caller.py", scope)
)";

// A file in memory, to be inherited.
class MemoryFile {
 public:
  static absl::StatusOr<MemoryFile> Make(const std::string& content) {
    MemoryFile file(memfd_create("quartet", MFD_CLOEXEC));
    if (file.fd_ < 0) return absl::ErrnoToStatus(errno, "cannot make a file in memory");
    for (size_t done = 0; done < content.size();) {
      const ssize_t n = write(file.fd_, content.data() + done, content.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return absl::ErrnoToStatus(errno, "cannot write to a file in memory");
      done += n;
    }
    if (lseek(file.fd_, 0, SEEK_SET) != 0) return absl::ErrnoToStatus(errno, "cannot rewind a file in memory");
    return file;
  }
  MemoryFile(MemoryFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~MemoryFile() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  explicit MemoryFile(int fd) : fd_(fd) {}
  int fd_;
};

std::string NewMark() {
  std::random_device random;
  return absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8),
                      absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
}

std::vector<std::string> Arguments(const MemoryFile& program, const MemoryFile& caller, const MemoryFile& filter,
                                   const std::string& driver, const std::string& mark) {
  return {"bwrap",
          "--unshare-all",
          "--new-session",
          "--die-with-parent",
          "--clearenv",
          "--setenv",
          "PATH",
          "/usr/bin:/bin",
          "--setenv",
          "HOME",
          "/tmp",
          "--setenv",
          "LANG",
          "C.UTF-8",
          "--setenv",
          "OMP_NUM_THREADS",
          "1",
          "--setenv",
          "OPENBLAS_NUM_THREADS",
          "1",
          "--ro-bind",
          "/usr",
          "/usr",
          "--ro-bind-try",
          "/bin",
          "/bin",
          "--ro-bind-try",
          "/lib",
          "/lib",
          "--ro-bind-try",
          "/lib64",
          "/lib64",
          "--ro-bind-try",
          "/etc/alternatives",
          "/etc/alternatives",
          "--proc",
          "/proc",
          "--remount-ro",  // where the scorer runs as root, /proc/sys is the machine's settings
          "/proc",
          "--dev",
          "/dev",
          "--remount-ro",
          "/dev",
          "--size",
          absl::StrCat(kDiskBytes),
          "--tmpfs",
          "/tmp",
          "--ro-bind-data",
          absl::StrCat(program.fd()),
          "/run/answer.py",
          "--ro-bind-data",
          absl::StrCat(caller.fd()),
          "/run/caller.py",
          "--remount-ro",
          "/",
          "--chdir",
          "/tmp",
          "--uid",
          "65534",
          "--gid",
          "65534",
          "--cap-drop",
          "ALL",
          "--hostname",
          "sandbox",
          "--seccomp",
          absl::StrCat(filter.fd()),
          "--",
          "python3",
          "-I",
          "-B",
          "-c",
          driver,
          mark};
}

// Python that runs `driver` in a sandbox, once that stands. `input` is on its standard input; nothing: what is asked.
absl::StatusOr<std::unique_ptr<PipedProcess>> Start(const std::string& driver, const std::string& program,
                                                    const std::string& caller, const std::optional<std::string>& input,
                                                    const SandboxLimits& limits, const std::stop_token& stop) {
  const std::string filter_code = SystemCallFilter();
  if (filter_code.empty()) {
    return absl::FailedPreconditionError("sandboxes need a machine with x86-64 or ARM64 processors");
  }
  QUARTET_ASSIGN_OR_RETURN(const MemoryFile program_file, MemoryFile::Make(program));
  QUARTET_ASSIGN_OR_RETURN(const MemoryFile input_file, MemoryFile::Make(input.value_or("")));
  QUARTET_ASSIGN_OR_RETURN(const MemoryFile caller_file, MemoryFile::Make(caller));
  QUARTET_ASSIGN_OR_RETURN(const MemoryFile filter_file, MemoryFile::Make(filter_code));
  const std::string mark = NewMark();
  const PipedProcessOptions options = {
      .argv = Arguments(program_file, caller_file, filter_file, absl::StrCat(kBegin, driver), mark),
      .limits = {.address_space_bytes = limits.memory_bytes,
                 .cpu_seconds = absl::ToInt64Seconds(absl::Ceil(limits.timeout, absl::Seconds(1))) + 1,
                 .file_bytes = kDiskBytes,
                 .open_files = kOpenFiles},
      .kept_fds = {program_file.fd(), caller_file.fd(), filter_file.fd()},
      .input_fd = input.has_value() ? input_file.fd() : -1,
      .error = PipedProcessOptions::Error::kThrownAway,
      // /proc/1/environ is readable inside.
      .no_environment = true,
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

}  // namespace

absl::StatusOr<SandboxedRun> RunSandboxed(const std::string& program, const std::string& input,
                                          const std::string& caller, const SandboxLimits& limits,
                                          const std::stop_token& stop) {
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<PipedProcess> running,
                           Start(kRun, program, caller, input, limits, stop));
  const absl::StatusOr<PipedProcess::Outcome> outcome =
      running->Finish(kMostOutputBytes, Deadline::In(limits.timeout), stop);
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
  const Deadline deadline = Deadline::In(limits.timeout);
  // They speak in turn, the judge first. Whatever of them ends, or says too much or nothing: the test is not passed.
  absl::StatusOr<std::string> said = judge->ReadLine(kMostOutputBytes, deadline, stop);
  while (said.ok() && said->starts_with("{")) {
    said = judged->Ask(*said, kMostOutputBytes, deadline, stop);
    if (said.ok()) said = judge->Ask(*said, kMostOutputBytes, deadline, stop);
  }
  if (absl::IsCancelled(said.status())) return said.status();
  if (!said.ok()) return false;
  if (said->starts_with("\"wrong: ")) return absl::InvalidArgumentError(*said);
  return *said == "\"passed\"";
}

absl::Status CheckSandbox() {
  const absl::StatusOr<SandboxedRun> run =
      RunSandboxed("print(6 * 7)", "", "", {.timeout = absl::Seconds(30)}, std::stop_token());
  if (absl::IsNotFound(run.status())) {
    return absl::FailedPreconditionError(
        "code is run in a sandbox only, and bubblewrap (bwrap), which makes it, is not installed: apt-get install "
        "bubblewrap");
  }
  if (run.ok() && run->end == SandboxedRun::End::kExited && run->output == "42\n") return absl::OkStatus();
  std::string why = "python3 does not run there as it should";
  if (!run.ok()) why = std::string(run.status().message());
  if (run.ok() && run->end == SandboxedRun::End::kTimedOut) why = "python3 takes longer than 30 s for nothing";
  return absl::FailedPreconditionError(absl::StrCat(
      "code is run in a sandbox only, and there can be none here: ", why,
      ". It needs /usr/bin/python3 and user namespaces: try `bwrap --unshare-all --ro-bind / / true`; where that "
      "fails, "
      "allow them (sysctl kernel.unprivileged_userns_clone=1, on Ubuntu also "
      "kernel.apparmor_restrict_unprivileged_userns=0; in a container, start it with --security-opt seccomp=unconfined "
      "or --privileged)"));
}

}  // namespace quartet
