#include "core/service/rpc/health_service.h"

#include <gtest/gtest.h>

#include <new>

namespace quartet {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

TEST(HealthService, SaysThatThereIsNoMemory) {
  HealthService health({"scorer"}, []() -> bool { throw std::bad_alloc(); });
  health.SetServing(true);
  HealthCheckResponse response;
  for (int time = 0; time < 2; ++time) {  // it holds no lock then
    EXPECT_EQ(health.Check(nullptr, &HealthCheckRequest::default_instance(), &response).error_code(),
              grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(health.Watch(nullptr, &HealthCheckRequest::default_instance(), nullptr).error_code(),
              grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
}

}  // namespace
}  // namespace quartet
