#include "core/service/ranks/call_metrics.h"

#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

namespace quartet {
namespace {

// As gRPC's documents write them.
const char* NameOf(grpc::StatusCode code) {
  constexpr const char* kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  return static_cast<size_t>(code) < std::size(kNames) ? kNames[code] : "UNKNOWN";
}

}  // namespace

// One call.
class CallTimer final : public grpc::experimental::Interceptor {
 public:
  CallTimer(CallMetrics* metrics, std::string method)
      : metrics_(metrics),
        method_(std::move(method)),
        begin_(std::chrono::steady_clock::now()),
        in_flight_(metrics->in_flight_.Add({{"method", method_}})) {
    in_flight_.Increment();
    metrics_->Count(1);
  }
  ~CallTimer() override {
    if (!has_status_) in_flight_.Decrement();
    metrics_->Count(-1);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin_;
      static const auto* const buckets = new prometheus::Histogram::BucketBoundaries(DurationBuckets(1e-3, 1e3));
      metrics_->handling_.Add({{"method", method_}, {"code", NameOf(methods->GetSendStatus().error_code())}}, *buckets)
          .Observe(taken.count());
      if (!std::exchange(has_status_, true)) in_flight_.Decrement();
    }
    methods->Proceed();
  }

 private:
  CallMetrics* const metrics_;
  const std::string method_;
  const std::chrono::steady_clock::time_point begin_;
  prometheus::Gauge& in_flight_;
  bool has_status_ = false;
};

namespace {

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(CallMetrics* metrics) : metrics_(metrics) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    if (info->method() == std::string_view("/quartet.Rank/Lane")) return nullptr;
    return new CallTimer(metrics_, info->method() + (info->method()[0] == '/' ? 1 : 0));
  }

 private:
  CallMetrics* const metrics_;
};

}  // namespace

CallMetrics::CallMetrics()
    : handling_(prometheus::BuildHistogram()
                    .Name("quartet_grpc_server_handling_seconds")
                    .Help("Time from a call's beginning to its status, by method and code.")
                    .Register(registry_)),
      in_flight_(prometheus::BuildGauge()
                     .Name("quartet_grpc_server_in_flight")
                     .Help("Calls that have no status yet, by method.")
                     .Register(registry_)) {}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> CallMetrics::Interceptor() {
  return std::make_unique<Factory>(this);
}

void CallMetrics::Count(int calls) {
  const std::lock_guard lock(mutex_);
  calls_ += calls;
  changed_.notify_all();
}

bool CallMetrics::AwaitNone(const Deadline& until) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, until.time(), [this] { return calls_ == 0; });
}

MetricFamilies CallMetrics::Collect() const { return registry_.Collect(); }

}  // namespace quartet
