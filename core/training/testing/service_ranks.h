// For tests: all ranks of a service, each with its real server on a port of its own, inside one process.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/service/ranks/rank_main.h"
#include "core/service/ranks/rank_server.h"
#include "proto/run_config.pb.h"

namespace quartet {

class ServiceRanks {
 public:
  // Returns when all ranks serve, or with the first error.
  static absl::StatusOr<std::unique_ptr<ServiceRanks>> Start(const RankMainOptions& service, const RunConfig& config,
                                                             int ranks);
  ~ServiceRanks();

  // To one rank's server; 0 is the leader.
  std::shared_ptr<grpc::Channel> channel(int rank = 0) const;
  // What the first rank said that found the service unable to go on; OK while none has. The processes would end then.
  absl::Status end() const;

  const std::string& endpoint(int rank) const { return servers_[rank]->context().endpoint; }

 private:
  ServiceRanks() = default;
  mutable std::mutex mutex_;
  absl::Status end_;  // guarded by mutex_
  std::vector<std::unique_ptr<RankServer>> servers_;
};

}  // namespace quartet
