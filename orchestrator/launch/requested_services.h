// Services that a script around the run has started: Slurm's batch script (deploy/slurm/job_script.h),
// Ray's driver (deploy/ray/launch.py).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/cancellation/cancellation.h"
#include "orchestrator/launch/service_starter.h"

namespace quartet {

// Names the folder of requests to such a script, in its orchestrator's environment.
inline constexpr char kServiceRequests[] = "QUARTET_SERVICE_REQUESTS";

// Asks the script by files in a folder that both see:
//   request           "stop", "start" or "keep"; the service; of a start the programs' folder and the further
//                     arguments: a line each. The script removes it once that is done.
//   SERVICE.programs  where the script has the folder of the programs of one that was replaced and kept, also in later
//                     starts of the run
//   SERVICE.ended     the exit code of one that has ended between its start and "keep"
// One thread.
class RequestedServices : public ServiceStarter {
 public:
  struct Options {
    std::string folder;
    std::string programs_folder;                   // of services that were not replaced
    std::string logs_folder;                       // where <service>.log is, for errors
    std::map<std::string, std::string> addresses;  // where they listen, however often they are started
    Cancellation* cancellation = nullptr;          // outlives it
  };
  explicit RequestedServices(Options options) : options_(std::move(options)) {}

  std::string ProgramsFolderOf(const std::string& service) const override;
  absl::Status StopService(const std::string& service) override;
  absl::StatusOr<std::string> StartService(const std::string& service, const std::string& programs_folder,
                                           const std::vector<std::string>& arguments) override;
  absl::Status KeepService(const std::string& service) override;

 private:
  absl::Status Request(const std::vector<std::string>& lines) const;
  // Until it is true. DEADLINE_EXCEEDED says that the script has not done `what`.
  absl::Status WaitFor(const std::string& what, const std::function<absl::StatusOr<bool>()>& is_done) const;

  const Options options_;
};

}  // namespace quartet
