#include "core/service/ranks/addresses/rank_addresses.h"

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/network/address.h"
#include "core/service/ranks/addresses/host_address.h"

namespace quartet {

absl::StatusOr<RankAddresses> FindRankAddresses(const std::string& service, const std::string& listen,
                                                const RankEnvironment& place, bool launched,
                                                const std::string& master) {
  QUARTET_ASSIGN_OR_RETURN(HostPort own, ParseHostPort(listen));
  const bool leads = place.rank == 0;
  const auto wrong = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("services.", service, ".listen is ", own.ToString(), what...));
  };
  RankAddresses found;
  if (place.world_size > 1 && !launched) {
    if (own.port == 0) {
      return wrong(
          ": ranks that were not started by one launcher must know the leader's port; set it to one that is free");
    }
    HostPort leader = own;
    if (!IsLoopback(own.host) && !master.empty()) leader.host = master;
    if (IsWildcard(leader.host)) return wrong(": set MASTER_ADDR to the leader's host, or listen on one address");
    const bool one_host = place.local_world_size == place.world_size;
    if (!leads) {
      found.leader = leader.ToString();
      QUARTET_ASSIGN_OR_RETURN(own.host, LocalAddressTowards(leader));
    } else if (IsWildcard(own.host)) {
      if (absl::Status status = CheckReachable(leader, own.host, one_host); !status.ok()) {
        return wrong(", so that the other ranks are told MASTER_ADDR, but ", status.message());
      }
      found.advertised_host = leader.host;
    } else if (!IsLoopback(own.host)) {
      if (absl::Status status = CheckReachable(own, "::", one_host); !status.ok()) {
        return wrong(", but ", status.message());
      }
    }
  }
  if (!leads) own.port = 0;
  if (IsWildcard(own.host) && found.advertised_host.empty()) {
    const absl::StatusOr<std::string> host = OwnReachableHost(own.host);
    if (!host.ok()) return wrong(", but ", host.status().message(), "; listen on one address, such as 127.0.0.1");
    found.advertised_host = *host;
  }
  found.listen = own.ToString();
  return found;
}

}  // namespace quartet
