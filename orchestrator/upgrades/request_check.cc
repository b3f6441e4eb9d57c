#include "orchestrator/upgrades/request_check.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/config/services.h"
#include "orchestrator/upgrades/program_version.h"

namespace quartet {

absl::Status CheckCanBeReplaced(const std::vector<std::string>& services, const RunConfig& config,
                                const std::string& service) {
  if (std::ranges::find(services, service) == services.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the run has no service \"", service, "\"; it has ", absl::StrJoin(services, ", ")));
  }
  if (FindTrainer(service) != nullptr && !config.train().save_optimizer()) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.save_optimizer is false in this run, and a ", service,
                     " hands its training state over in a checkpoint: such a run's trainers cannot be replaced"));
  }
  return absl::OkStatus();
}

absl::Status CheckHasPrograms(const std::string& service, const std::string& folder) {
  for (const std::string& program : {service, std::string("rank")}) {
    const std::string path = absl::StrCat(folder, "/", service, "/", program);
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no ", path, ": --bundle names the folder of an unpacked bundle"));
    }
    if (access(path.c_str(), X_OK) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, " cannot be executed: ", strerror(errno),
          "; --bundle names a folder in which programs are as the bundle has them (tar keeps their mode)"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRunsHere(const std::string& service, const std::string& folder,
                           const std::function<absl::Status()>& proceed) {
  const absl::Status status = ReadProgramVersion(absl::StrCat(folder, "/", service, "/", service), proceed).status();
  return absl::IsFailedPrecondition(status) ? absl::InvalidArgumentError(status.message()) : status;
}

}  // namespace quartet
