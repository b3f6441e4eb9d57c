// The standard gRPC health service (core/service/rpc/health.proto). gRPC's own is SERVING from its first moment; this
// one is NOT_SERVING until it is told, and while what it asks says so.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "core/base/time/deadline.h"
#include "core/service/rpc/health.grpc.pb.h"

namespace quartet {

// Thread safe. One answer for the whole server: every known name, and "", has the same state.
class HealthService final : public grpc::health::v1::Health::Service {
 public:
  // NOT_FOUND is answered for other names. While it is serving, `is_ready` is asked at every check and every 200 ms of
  // a watch, from any thread; it must not call this.
  HealthService(std::set<std::string> names, std::function<bool()> is_ready);

  void SetServing(bool serving);
  // What a check is answered.
  bool is_serving();
  // How long it has been serving while nobody watched; zero while somebody does.
  absl::Duration unwatched();
  // SetServing(false), and ends all watches.
  void Close();

  grpc::Status Check(grpc::ServerContext* context, const grpc::health::v1::HealthCheckRequest* request,
                     grpc::health::v1::HealthCheckResponse* response) override;
  grpc::Status Watch(grpc::ServerContext* context, const grpc::health::v1::HealthCheckRequest* request,
                     grpc::ServerWriter<grpc::health::v1::HealthCheckResponse>* writer) override;

 private:
  grpc::Status DoWatch(grpc::ServerContext* context, const grpc::health::v1::HealthCheckRequest& request,
                       grpc::ServerWriter<grpc::health::v1::HealthCheckResponse>* writer);
  // Under the lock, after a change of serving_ or watchers_.
  void CountUnwatched();
  grpc::health::v1::HealthCheckResponse::ServingStatus Status() const;

  const std::set<std::string> names_;
  const std::function<bool()> is_ready_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool serving_ = false;                                        // guarded by mutex_
  bool closed_ = false;                                         // likewise
  int watchers_ = 0;                                            // likewise
  std::optional<Deadline::Clock::time_point> unwatched_since_;  // likewise; none while it is watched, or does not serve
};

}  // namespace quartet
