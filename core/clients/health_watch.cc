#include "core/clients/health_watch.h"

#include <chrono>
#include <utility>

#include "core/service/rpc/health.grpc.pb.h"

namespace quartet {

HealthWatch::HealthWatch(std::shared_ptr<grpc::Channel> channel)
    : channel_(std::move(channel)), thread_([this] { Run(); }) {}

HealthWatch::~HealthWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    if (watching_ != nullptr) watching_->TryCancel();
    changed_.notify_all();
  }
  thread_.join();
}

void HealthWatch::MoveTo(std::shared_ptr<grpc::Channel> channel) {
  const std::lock_guard lock(mutex_);
  channel_ = std::move(channel);
  if (watching_ != nullptr) watching_->TryCancel();
  changed_.notify_all();
}

void HealthWatch::Run() {
  constexpr std::chrono::milliseconds kPause{500};
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    watching_ = &context;
    const std::shared_ptr<grpc::Channel> watched = channel_;
    const auto stub = grpc::health::v1::Health::NewStub(watched);
    lock.unlock();
    const auto reader = stub->Watch(&context, grpc::health::v1::HealthCheckRequest());
    grpc::health::v1::HealthCheckResponse state;
    while (reader->Read(&state)) {
    }
    const bool answers = reader->Finish().error_code() != grpc::StatusCode::UNIMPLEMENTED;
    lock.lock();
    watching_ = nullptr;
    if (stopped_) return;
    const auto moved = [&] { return stopped_ || channel_ != watched; };
    if (answers) {
      changed_.wait_for(lock, kPause, moved);
    } else {
      changed_.wait(lock, moved);  // what listens there knows no health
    }
  }
}

}  // namespace quartet
