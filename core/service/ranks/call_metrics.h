// A server's calls: how many there are, their end, and for Prometheus how long they take, by method and how they end.
// From the moment a call is there to its status; a call that is cut off has none. Lanes between ranks are no calls.
#pragma once

#include <grpcpp/support/server_interceptor.h>
#include <prometheus/registry.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>

#include "absl/status/status.h"
#include "core/base/time/deadline.h"
#include "core/prometheus/families.h"

namespace quartet {

class CallTimer;

// Thread safe.
class CallMetrics {
 public:
  CallMetrics();

  // For ServerBuilder::experimental().SetInterceptorCreators. It must not outlive this.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Interceptor();

  // Whether no call is left by then.
  bool AwaitNone(const Deadline& until);
  // Those whose clients have not sent all end, with `status` as what these read: their handlers wait for nothing else.
  // Before the server shuts down: once it has told its clients so, a connection closes with its last call, and says
  // nothing more.
  void EndUnsent(const absl::Status& status);

  // quartet_grpc_server_handling_seconds, quartet_grpc_server_in_flight.
  MetricFamilies Collect() const;

 private:
  friend class CallTimer;

  void Add(CallTimer* call);
  void Remove(CallTimer* call);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<CallTimer*> calls_;  // guarded by mutex_
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Histogram>& handling_;
  prometheus::Family<prometheus::Gauge>& in_flight_;
};

}  // namespace quartet
