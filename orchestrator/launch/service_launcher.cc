#include "orchestrator/launch/service_launcher.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/files/files.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/base/time/loading.h"
#include "core/base/time/pause.h"
#include "core/base/trace.h"
#include "core/config/run_config.h"
#include "core/errors/shown.h"
#include "core/service/process/launcher.h"

namespace quartet {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(50);
// A launcher waits 3 s for its ranks; it needs a little longer itself.
// Longer than a launcher's own for its ranks (4 s): it has to see them end.
constexpr absl::Duration kStopGrace = absl::Seconds(6);

}  // namespace

std::string EndOfLog(const std::string& path, int lines, int64_t from) {
  constexpr std::streamoff kMaxBytes = 8 << 10;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  const std::streamoff begin = std::max<std::streamoff>(std::min<std::streamoff>(from, size), size - kMaxBytes);
  std::string text(static_cast<size_t>(size - begin), '\0');
  file.seekg(begin);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return std::string(LastLines(text, lines));
}

RunConfig ServiceLauncher::Defaults(const std::vector<std::string>& services) {
  RunConfig config;
  for (const std::string& service : services) MutablePlacementOf(&config, service)->set_listen("127.0.0.1:0");
  return config;
}

std::string ServiceLauncher::DefaultProgramsFolder() {
  const std::filesystem::path executable = ExecutableFolder();
  for (std::filesystem::path folder = executable; folder.has_relative_path(); folder = folder.parent_path()) {
    if (std::filesystem::exists(folder / "policy_trainer" / "policy_trainer")) return folder.string();
  }
  return executable.parent_path().string();
}

std::string ServiceLauncher::LogPath(const std::string& service) const {
  return absl::StrCat(options_.logs_folder, "/", service, ".log");
}

std::string ServiceLauncher::LogEnd(const std::string& service, int lines) const {
  return EndOfLog(LogPath(service), lines, log_begins_.at(service));
}

std::string ServiceLauncher::AddressPath(const std::string& service) const {
  return absl::StrCat(options_.logs_folder, "/", service, ".address");
}

absl::StatusOr<std::unique_ptr<ServiceLauncher>> ServiceLauncher::Start(const ServiceLauncherOptions& options) {
  QUARTET_CHECK(options.cancellation != nullptr);
  std::unique_ptr<ServiceLauncher> launcher(new ServiceLauncher(options));
  QUARTET_RETURN_IF_ERROR(launcher->StartAll());
  launcher->watcher_ = std::jthread([raw = launcher.get()](const std::stop_token& stop) { raw->Watch(stop); });
  return launcher;
}

absl::Status ServiceLauncher::StartAll() {
  for (const std::string& service : options_.services) {
    QUARTET_ASSIGN_OR_RETURN(children_[service], Begin(service, options_.programs_folder, options_.arguments));
  }
  return AwaitServing(options_.services, [this] { return Poll(); });
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ServiceLauncher::Begin(const std::string& service,
                                                                     const std::string& programs_folder,
                                                                     const std::vector<std::string>& arguments) {
  std::error_code ignored;
  std::filesystem::remove(AddressPath(service), ignored);
  ChildProcessOptions child;
  child.heeds_parent = true;
  child.argv = {absl::StrCat(programs_folder, "/", service, "/", service), "--config=" + options_.config_path,
                "--address_file=" + AddressPath(service)};
  if (!options_.trace.empty()) child.argv.push_back("--trace=" + TraceFileOf(options_.trace, service));
  child.argv.insert(child.argv.end(), arguments.begin(), arguments.end());
  child.removed_environment = RankEnvironmentNames();
  child.environment = EnvironmentOf(options_.plan, service);
  // Paths in the resolved configuration are absolute already.
  child.log_file = LogPath(service);
  const uintmax_t earlier = std::filesystem::file_size(child.log_file, ignored);
  child.own_process_group = true;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    log_begins_[service] = ignored ? 0 : static_cast<int64_t>(earlier);
  }
  return Prefixed("cannot start " + service, ChildProcess::Start(child));
}

absl::Status ServiceLauncher::AwaitServing(const std::vector<std::string>& services,
                                           const std::function<absl::Status()>& poll) {
  const Deadline deadline = Deadline::In(options_.start_timeout);
  while (addresses_.size() < options_.services.size()) {
    QUARTET_RETURN_IF_ERROR(options_.cancellation->status());
    QUARTET_RETURN_IF_ERROR(poll());
    for (const std::string& service : services) {
      if (addresses_.count(service) > 0) continue;
      // The file appears whole, once the service is SERVING.
      absl::StatusOr<std::string> address = ReadFile(AddressPath(service));
      if (!address.ok()) continue;
      addresses_[service] = std::string(absl::StripAsciiWhitespace(*address));
    }
    if (options_.on_loading) options_.on_loading(static_cast<int64_t>(addresses_.size()), WhatOthersAreAt(services));
    if (deadline.passed()) {
      std::string missing;
      for (const std::string& service : services) {
        if (addresses_.count(service) == 0) absl::StrAppend(&missing, missing.empty() ? "" : ", ", service);
      }
      return absl::DeadlineExceededError(absl::StrCat(missing, " did not come up within ",
                                                      absl::FormatDuration(options_.start_timeout), "; see ",
                                                      options_.logs_folder));
    }
    absl::SleepFor(kPollInterval);
  }
  return absl::OkStatus();
}

std::string ServiceLauncher::ProgramsFolderOf(const std::string& service) const {
  const auto kept = kept_programs_.find(service);
  return kept == kept_programs_.end() ? options_.programs_folder : kept->second;
}

absl::Status ServiceLauncher::StopService(const std::string& service) {
  std::unique_ptr<ChildProcess> child;
  {
    // From here on its end is nobody's death.
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto* children : {&children_, &not_kept_}) {
      const auto found = children->find(service);
      if (found == children->end()) continue;
      child = std::move(found->second);
      children->erase(found);
    }
  }
  addresses_.erase(service);
  if (child == nullptr) return absl::NotFoundError(absl::StrCat("the ", service, " does not run"));
  Terminate({child.get()});
  return absl::OkStatus();
}

absl::StatusOr<std::string> ServiceLauncher::StartService(const std::string& service,
                                                          const std::string& programs_folder,
                                                          const std::vector<std::string>& arguments) {
  QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<ChildProcess> child, Begin(service, programs_folder, arguments));
  const absl::Status serving = AwaitServing({service}, [&]() -> absl::Status {
    QUARTET_RETURN_IF_ERROR(Poll());
    const std::optional<ExitState> exit = child->Poll();
    const std::lock_guard<std::mutex> lock(mutex_);
    return exit.has_value() ? DescribeEnd(service, *exit) : absl::OkStatus();
  });
  if (!serving.ok()) {
    Terminate({child.get()});
    return serving;
  }
  tried_programs_[service] = programs_folder;
  not_kept_[service] = std::move(child);
  return addresses_.at(service);
}

absl::Status ServiceLauncher::KeepService(const std::string& service) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = not_kept_.find(service);
  if (found == not_kept_.end()) return absl::NotFoundError(absl::StrCat("the ", service, " was not started anew"));
  children_[service] = std::move(found->second);
  not_kept_.erase(found);
  kept_programs_[service] = tried_programs_[service];
  return absl::OkStatus();
}

std::string ServiceLauncher::WhatOthersAreAt(const std::vector<std::string>& services) const {
  std::string text;
  for (const std::string& service : services) {
    if (addresses_.count(service) > 0) continue;
    const std::string detail = LoadingDetail(LogEnd(service, 1));
    absl::StrAppend(&text, text.empty() ? "" : ", ", service, detail.empty() ? "" : absl::StrCat(" (", detail, ")"));
  }
  return text;
}

absl::Status ServiceLauncher::Poll() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_ || !death_.ok()) return death_;
  for (auto& [service, child] : children_) {
    const std::optional<ExitState> exit = child->Poll();
    if (!exit.has_value()) continue;
    death_ = DescribeEnd(service, *exit);
    return death_;
  }
  return absl::OkStatus();
}

absl::Status ServiceLauncher::DescribeEnd(const std::string& service, const ExitState& exit) const {
  const std::string log = LogEnd(service, kLogLines);
  const std::string message = absl::StrCat(service, " ended by itself: ", exit.Describe(), ". The end of ",
                                           LogPath(service), log.empty() ? " is empty" : ":\n", log);
  // By 2 a service says that what it was told to do is wrong.
  const bool wrong_input = exit.signal == 0 && exit.code == 2;
  return wrong_input ? absl::InvalidArgumentError(message) : absl::UnavailableError(message);
}

void ServiceLauncher::Terminate(const std::vector<ChildProcess*>& children) {
  for (ChildProcess* child : children) {
    child->SendReason("SIGTERM");  // by the signal alone a service may not end (train.save_on_sigterm)
    child->Signal(SIGTERM);
  }
  const Deadline deadline = Deadline::In(kStopGrace);
  for (ChildProcess* child : children) child->Terminate(deadline.left());
}

void ServiceLauncher::Watch(const std::stop_token& stop) {
  do {
    if (absl::Status death = Poll(); !death.ok()) {
      options_.cancellation->Cancel(death);
      return;
    }
  } while (PauseFor(stop, kPollInterval));
}

absl::Status ServiceLauncher::FindDeadService(absl::Duration patience) {
  const Deadline deadline = Deadline::In(patience);
  while (true) {
    absl::Status death = Poll();
    if (!death.ok() || deadline.passed()) return death;
    absl::SleepFor(kPollInterval);
  }
}

void ServiceLauncher::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  watcher_.request_stop();
  if (watcher_.joinable()) watcher_.join();
  std::vector<ChildProcess*> children;
  for (auto& [service, child] : children_) children.push_back(child.get());
  for (auto& [service, child] : not_kept_) children.push_back(child.get());
  Terminate(children);
  children_.clear();
  not_kept_.clear();
}

ServiceLauncher::~ServiceLauncher() { Stop(); }

}  // namespace quartet
