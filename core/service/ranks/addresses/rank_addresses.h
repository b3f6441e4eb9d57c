// Where a rank listens, what others find it under, and where it finds the leader.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/service/service_flags.h"

namespace quartet {

struct RankAddresses {
  // host:port that this rank's server binds; port 0 is a free one.
  std::string listen;
  // What others find this rank under, where it is not the host of `listen` (a wildcard). "" = that host.
  std::string advertised_host;
  // host:port of the leader's server. "": this rank is the leader, or the launcher's file will say it.
  std::string leader;
};

// `listen` is services.<service>.listen, of the leader. `launched`: all ranks are children of one launcher, on this
// host. Else `master` (may be empty) is the leader's host as MASTER_ADDR names it. INVALID_ARGUMENT names the option,
// an address that others could not reach, and what to set.
absl::StatusOr<RankAddresses> FindRankAddresses(const std::string& service, const std::string& listen,
                                                const RankEnvironment& place, bool launched, const std::string& master);

}  // namespace quartet
