#include "core/service/ranks/call_metrics.h"

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/service/rpc/end_call.h"

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
  CallTimer(CallMetrics* metrics, std::string method, grpc::experimental::ServerRpcInfo* info)
      : metrics_(metrics),
        method_(std::move(method)),
        context_(info->server_context()),
        is_unsent_(info->type() == grpc::experimental::ServerRpcInfo::Type::CLIENT_STREAMING ||
                   info->type() == grpc::experimental::ServerRpcInfo::Type::BIDI_STREAMING),
        begin_(std::chrono::steady_clock::now()),
        in_flight_(metrics->in_flight_.Add({{"method", method_}})) {
    in_flight_.Increment();
    metrics_->Add(this);
  }
  ~CallTimer() override {
    if (!has_status_) in_flight_.Decrement();
    metrics_->Remove(this);
    if (call_ != nullptr) grpc_call_unref(call_);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(Point::POST_RECV_INITIAL_METADATA)) {
      grpc_call* const call = context_->c_call();
      grpc_call_ref(call);
      call_ = call;
    }
    if (methods->QueryInterceptionHookPoint(Point::POST_RECV_MESSAGE) && methods->GetRecvMessage() == nullptr) {
      is_unsent_ = false;
    }
    if (methods->QueryInterceptionHookPoint(Point::PRE_SEND_STATUS)) {
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin_;
      static const auto* const buckets = new prometheus::Histogram::BucketBoundaries(DurationBuckets(1e-3, 1e3));
      metrics_->handling_.Add({{"method", method_}, {"code", NameOf(methods->GetSendStatus().error_code())}}, *buckets)
          .Observe(taken.count());
      if (!std::exchange(has_status_, true)) in_flight_.Decrement();
    }
    methods->Proceed();
  }

  // Whether its client may send more.
  bool is_unsent() const { return is_unsent_; }
  // Null before it has begun.
  grpc_call* call() const { return call_; }

 private:
  CallMetrics* const metrics_;
  const std::string method_;
  grpc::ServerContextBase* const context_;
  std::atomic<bool> is_unsent_;
  std::atomic<grpc_call*> call_ = nullptr;  // which stays for as long as this
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
    return new CallTimer(metrics_, info->method() + (info->method()[0] == '/' ? 1 : 0), info);
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

void CallMetrics::Add(CallTimer* call) {
  const std::lock_guard lock(mutex_);
  calls_.insert(call);
}

void CallMetrics::Remove(CallTimer* call) {
  const std::lock_guard lock(mutex_);
  calls_.erase(call);
  changed_.notify_all();
}

bool CallMetrics::AwaitNone(const Deadline& until) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, until.time(), [this] { return calls_.empty(); });
}

void CallMetrics::EndUnsent(const absl::Status& status) {
  std::vector<grpc_call*> calls;
  {
    const std::lock_guard lock(mutex_);
    for (const CallTimer* timer : calls_) {
      if (timer->call() == nullptr || !timer->is_unsent()) continue;
      calls.push_back(timer->call());
      grpc_call_ref(calls.back());
    }
  }
  // What follows from their ends may run here, and come to this object.
  for (grpc_call* call : calls) {
    EndCall(call, status);
    grpc_call_unref(call);
  }
}

MetricFamilies CallMetrics::Collect() const { return registry_.Collect(); }

}  // namespace quartet
