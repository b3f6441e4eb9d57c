// How long a server's calls take, by method and how they end, for Prometheus. From the moment a call is there to its
// status; a call that is cut off has none.
#pragma once

#include <grpcpp/support/server_interceptor.h>
#include <prometheus/registry.h>

#include <memory>

#include "core/metrics/families.h"

namespace quartet {

// Thread safe.
class CallMetrics {
 public:
  CallMetrics();

  // For ServerBuilder::experimental().SetInterceptorCreators. It must not outlive this.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Interceptor();

  // quartet_grpc_server_handling_seconds, quartet_grpc_server_in_flight.
  MetricFamilies Collect() const;

 private:
  friend class CallTimer;

  prometheus::Registry registry_;
  prometheus::Family<prometheus::Histogram>& handling_;
  prometheus::Family<prometheus::Gauge>& in_flight_;
};

}  // namespace quartet
