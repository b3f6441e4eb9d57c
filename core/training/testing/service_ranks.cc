#include "core/training/testing/service_ranks.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <thread>

#include "core/base/status_macros.h"

namespace quartet {

absl::StatusOr<std::unique_ptr<ServiceRanks>> ServiceRanks::Start(const RankMainOptions& service,
                                                                  const RunConfig& config, int ranks) {
  std::unique_ptr<ServiceRanks> result(new ServiceRanks);
  for (int rank = 0; rank < ranks; ++rank) {
    RankServerOptions options;
    options.service = service;
    options.config = config;
    options.place = {.rank = rank, .world_size = ranks, .local_rank = rank, .local_world_size = ranks};
    options.listen = "127.0.0.1:0";
    if (rank > 0) options.leader = result->endpoint(0);
    options.on_broken = [ranks = result.get()](const absl::Status& status) {
      const std::lock_guard lock(ranks->mutex_);
      ranks->end_.Update(status);
    };
    QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<RankServer> server, RankServer::Create(std::move(options)));
    result->servers_.push_back(std::move(server));
  }
  std::vector<absl::Status> statuses(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = result->servers_[rank]->Serve(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) QUARTET_RETURN_IF_ERROR(status);
  return result;
}

ServiceRanks::~ServiceRanks() {
  std::vector<std::thread> threads;
  for (const auto& server : servers_) {
    threads.emplace_back([&server] { server->Shutdown(absl::Seconds(1), "the test ends"); });
  }
  for (std::thread& thread : threads) thread.join();
}

absl::Status ServiceRanks::end() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

std::shared_ptr<grpc::Channel> ServiceRanks::channel(int rank) const {
  return grpc::CreateChannel(endpoint(rank), grpc::InsecureChannelCredentials());
}

}  // namespace quartet
