// Whatever has started the services of a run, as one who replaces them sees it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quartet {

class ServiceStarter {
 public:
  virtual ~ServiceStarter() = default;

  // Below which the program of a service is that runs, or ran last: <folder>/<service>/<service>. One that was started
  // anew counts from KeepService on.
  virtual std::string ProgramsFolderOf(const std::string& service) const = 0;
  // Ends a service. It is gone, with all of its ranks, when this returns.
  virtual absl::Status StopService(const std::string& service) = 0;
  // Starts one that was stopped where it was, of the programs in `programs_folder`, with `arguments` behind those that
  // it had at the run's start. Returns its leader's host:port once it listens; after an error nothing of it is left.
  // Its end is its own affair until KeepService.
  virtual absl::StatusOr<std::string> StartService(const std::string& service, const std::string& programs_folder,
                                                   const std::vector<std::string>& arguments) = 0;
  // From now on it is a part of the run as it was at the start: where it ends the run does.
  virtual absl::Status KeepService(const std::string& service) = 0;
};

}  // namespace quartet
