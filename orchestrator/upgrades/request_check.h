// What is wrong with a request to replace a service before a run is asked for it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/run_config.pb.h"

namespace quartet {

// That a run of `config`, of these services, has `service`, and that it can be replaced. INVALID_ARGUMENT says why not.
absl::Status CheckCanBeReplaced(const std::vector<std::string>& services, const RunConfig& config,
                                const std::string& service);

// That the programs of `service` are in `folder`, that of an unpacked bundle, as this host sees it, and may be
// executed. INVALID_ARGUMENT names the one that is not.
absl::Status CheckHasPrograms(const std::string& service, const std::string& folder);

// That the program of `service` in `folder` runs on this host (ReadProgramVersion). INVALID_ARGUMENT says what it does
// instead.
absl::Status CheckRunsHere(const std::string& service, const std::string& folder,
                           const std::function<absl::Status()>& proceed);

}  // namespace quartet
