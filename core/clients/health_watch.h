// Tells a service that an orchestrator is there, for as long as it is.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace quartet {

// Watches a service's health over `channel`, from its first moment on and again whenever it comes back: the service
// counts the time that nobody does (services.orchestrator_timeout_seconds). Thread safe.
class HealthWatch {
 public:
  explicit HealthWatch(std::shared_ptr<grpc::Channel> channel);
  HealthWatch(const HealthWatch&) = delete;
  HealthWatch& operator=(const HealthWatch&) = delete;
  ~HealthWatch();

  void MoveTo(std::shared_ptr<grpc::Channel> channel);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext* watching_ = nullptr;  // while a watch is open
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace quartet
