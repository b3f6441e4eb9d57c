#include "orchestrator/launch/requested_services.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/files/fd.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/network/address.h"
#include "core/network/resolve_host.h"
#include "orchestrator/launch/service_launcher.h"

namespace quartet {
namespace {

// For a script to stop, or to begin, what runs on other hosts; for a service to listen, which it does before it loads.
constexpr absl::Duration kPatience = absl::Minutes(5);
constexpr absl::Duration kPoll = absl::Milliseconds(100);

bool Exists(const std::string& path) {
  std::error_code none;
  return std::filesystem::exists(path, none);
}

bool Listens(const std::string& address) {
  const absl::StatusOr<HostPort> place = ParseHostPort(address);
  if (!place.ok()) return false;
  const absl::StatusOr<AddressList> found = ResolveHost(*place, SOCK_STREAM, 0);
  if (!found.ok() || *found == nullptr) return false;
  const Fd own(socket((*found)->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!own.is_open()) return false;
  const timeval patience = {.tv_sec = 2, .tv_usec = 0};
  setsockopt(own.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  return connect(own.get(), (*found)->ai_addr, (*found)->ai_addrlen) == 0;
}

}  // namespace

absl::Status RequestedServices::WaitFor(const std::string& what,
                                        const std::function<absl::StatusOr<bool>()>& is_done) const {
  const Deadline deadline = Deadline::In(kPatience);
  while (true) {
    QUARTET_ASSIGN_OR_RETURN(const bool done, is_done());
    if (done) return absl::OkStatus();
    QUARTET_RETURN_IF_ERROR(options_.cancellation->status());
    if (deadline.passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("in ", absl::FormatDuration(kPatience), " ", what, "; see ", options_.logs_folder));
    }
    absl::SleepFor(kPoll);
  }
}

absl::Status RequestedServices::Request(const std::vector<std::string>& lines) const {
  const std::string path = options_.folder + "/request";
  QUARTET_RETURN_IF_ERROR(AtomicWriteFile(path, absl::StrJoin(lines, "\n") + "\n", 0600));
  return WaitFor(absl::StrCat("the script that started the services did not ", lines[0], " the ", lines[1]),
                 [&] { return !Exists(path); });
}

std::string RequestedServices::ProgramsFolderOf(const std::string& service) const {
  const absl::StatusOr<std::string> replaced = ReadFile(absl::StrCat(options_.folder, "/", service, ".programs"));
  return replaced.ok() ? std::string(absl::StripAsciiWhitespace(*replaced)) : options_.programs_folder;
}

absl::Status RequestedServices::StopService(const std::string& service) { return Request({"stop", service}); }

absl::Status RequestedServices::KeepService(const std::string& service) { return Request({"keep", service}); }

absl::StatusOr<std::string> RequestedServices::StartService(const std::string& service,
                                                            const std::string& programs_folder,
                                                            const std::vector<std::string>& arguments) {
  const std::string ended = absl::StrCat(options_.folder, "/", service, ".ended");
  const std::string& address = options_.addresses.at(service);
  std::vector<std::string> lines = {"start", service, programs_folder};
  lines.insert(lines.end(), arguments.begin(), arguments.end());
  absl::Status up = Request(lines);
  if (up.ok()) {
    up = WaitFor(absl::StrCat("the ", service, " did not listen at ", address), [&]() -> absl::StatusOr<bool> {
      if (!Exists(ended)) return Listens(address);
      const std::string log = absl::StrCat(options_.logs_folder, "/", service, ".log");
      return absl::UnavailableError(absl::StrCat(service, " ended by itself: exit code ",
                                                 absl::StripAsciiWhitespace(ReadFile(ended).value_or("unknown")),
                                                 ". The end of ", log, ":\n", EndOfLog(log, kLogLines)));
    });
  }
  if (up.ok()) return address;
  StopService(service).IgnoreError();
  return up;
}

}  // namespace quartet
