#include "core/service/rpc/health_service.h"

#include <chrono>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "core/service/rpc/status_conversion.h"

namespace quartet {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

HealthService::HealthService(std::set<std::string> names, std::function<bool()> is_ready)
    : names_([&names] {
        names.insert("");
        return std::move(names);
      }()),
      is_ready_(std::move(is_ready)) {}

void HealthService::SetServing(bool serving) {
  std::lock_guard<std::mutex> lock(mutex_);
  serving_ = serving && !closed_;
  CountUnwatched();
  changed_.notify_all();
}

bool HealthService::is_serving() {
  const std::lock_guard lock(mutex_);
  return Status() == HealthCheckResponse::SERVING;
}

absl::Duration HealthService::unwatched() {
  const std::lock_guard lock(mutex_);
  return unwatched_since_.has_value() ? absl::FromChrono(Deadline::Clock::now() - *unwatched_since_)
                                      : absl::ZeroDuration();
}

void HealthService::CountUnwatched() {
  if (!serving_ || watchers_ > 0) {
    unwatched_since_.reset();
  } else if (!unwatched_since_.has_value()) {
    unwatched_since_ = Deadline::Clock::now();
  }
}

void HealthService::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  serving_ = false;
  closed_ = true;
  CountUnwatched();
  changed_.notify_all();
}

// Under the lock.
HealthCheckResponse::ServingStatus HealthService::Status() const {
  return serving_ && is_ready_() ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

grpc::Status HealthService::Check(grpc::ServerContext*, const HealthCheckRequest* request,
                                  HealthCheckResponse* response) {
  return ToGrpc([&]() -> absl::Status {
    if (names_.count(request->service()) == 0) {
      return absl::NotFoundError("no service of the name '" + request->service() + "'");
    }
    const std::lock_guard lock(mutex_);
    response->set_status(Status());
    return absl::OkStatus();
  });
}

grpc::Status HealthService::Watch(grpc::ServerContext* context, const HealthCheckRequest* request,
                                  grpc::ServerWriter<HealthCheckResponse>* writer) {
  return ToGrpc([&] { return DoWatch(context, *request, writer); });
}

grpc::Status HealthService::DoWatch(grpc::ServerContext* context, const HealthCheckRequest& request,
                                    grpc::ServerWriter<HealthCheckResponse>* writer) {
  const bool known = names_.count(request.service()) > 0;
  HealthCheckResponse response;
  response.set_status(HealthCheckResponse::UNKNOWN);
  std::unique_lock<std::mutex> lock(mutex_);
  ++watchers_;
  CountUnwatched();
  const absl::Cleanup leave = [&] {
    if (!lock.owns_lock()) lock.lock();
    --watchers_;
    CountUnwatched();
  };
  for (;;) {
    const auto now = known ? Status() : HealthCheckResponse::SERVICE_UNKNOWN;
    const bool last = closed_;
    if (now != response.status()) {
      response.set_status(now);
      lock.unlock();
      if (!writer->Write(response)) return grpc::Status::OK;
      lock.lock();
    }
    if (last) return grpc::Status::CANCELLED;
    // The client's going is not signalled to this thread; it is looked for.
    if (context->IsCancelled()) return grpc::Status::CANCELLED;
    changed_.wait_for(lock, std::chrono::milliseconds(200));
  }
}

}  // namespace quartet
