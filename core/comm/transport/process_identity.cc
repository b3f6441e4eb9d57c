#include "core/comm/transport/process_identity.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace quartet {
namespace {

struct Stat {
  char state = 'X';
  int64_t start_time = 0;
};
constexpr char kUnknown = '?';

// From /proc/<pid>/stat; state X where there is no such process, kUnknown where it cannot be read (no more descriptors,
// say).
Stat ReadStat(int64_t pid) {
  const int fd = open(absl::StrCat("/proc/", pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  char text[1024];
  const ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof(text));
  const bool gone = errno == ENOENT || errno == ESRCH;
  if (fd >= 0) close(fd);
  if (size < 0) return {.state = gone ? 'X' : kUnknown};
  const std::string line(text, size);
  // The second field, a name in parentheses, may hold anything; the third is the state, the 22nd the start time.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream fields(line.substr(name_end + 1));
  Stat stat;
  fields >> stat.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.start_time;
  return fields ? stat : Stat();
}

std::string OwnHost() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  char ids[PATH_MAX];
  const ssize_t length = readlink("/proc/self/ns/pid", ids, sizeof(ids));
  if (!std::getline(file, boot) || boot.empty() || length <= 0) return "";
  return absl::StrCat(boot, "/", std::string(ids, length), "/", geteuid());
}

}  // namespace

std::string ProcessIdentity::ToString() const { return absl::StrCat(host, ",", pid, ",", start_time); }

absl::StatusOr<ProcessIdentity> ProcessIdentity::Parse(const std::string& text) {
  const std::vector<std::string> fields = absl::StrSplit(text, ',');
  ProcessIdentity identity;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[1], &identity.pid) ||
      !absl::SimpleAtoi(fields[2], &identity.start_time)) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not the identity of a process"));
  }
  identity.host = fields[0];
  return identity;
}

ProcessIdentity OwnProcessIdentity() {
  ProcessIdentity identity;
  identity.host = OwnHost();
  identity.pid = getpid();
  identity.start_time = ReadStat(identity.pid).start_time;
  return identity;
}

bool IsAlive(const ProcessIdentity& process) {
  const Stat stat = ReadStat(process.pid);
  // Nobody is dead because one cannot look.
  return stat.state == kUnknown || (stat.state != 'X' && stat.state != 'Z' && stat.start_time == process.start_time);
}

}  // namespace quartet
