// For tests: all ranks of a service, each with its real server on a port of its own, inside one process.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/service/rank_main.h"
#include "core/service/rank_server.h"
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
  const std::string& endpoint(int rank) const { return servers_[rank]->context().endpoint; }

 private:
  ServiceRanks() = default;
  std::vector<std::unique_ptr<RankServer>> servers_;
};

}  // namespace quartet
