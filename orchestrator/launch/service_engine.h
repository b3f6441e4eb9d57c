// Whatever has started the services of a run, as one who replaces them sees it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quartet {

class ServiceEngine {
 public:
  virtual ~ServiceEngine() = default;

  // Below which the programs are that it has started: <folder>/<service>/<service>.
  virtual const std::string& programs_folder() const = 0;
  // Ends a service. It is gone, with all of its ranks, when this returns.
  virtual absl::Status StopService(const std::string& service) = 0;
  // Starts one that was stopped where it was, of the programs in `programs_folder`, with `arguments` behind those that
  // it had at the run's start. Returns its leader's host:port once it is SERVING; after an error nothing of it is left.
  virtual absl::StatusOr<std::string> StartService(const std::string& service, const std::string& programs_folder,
                                                   const std::vector<std::string>& arguments) = 0;
};

}  // namespace quartet
