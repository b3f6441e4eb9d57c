// The time that a call has is its own, whatever is done to the host's clock meanwhile.
#include "core/service/rpc/call_deadline.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/testing/wall_clock.h"
#include "core/service/rpc/health.grpc.pb.h"

namespace quartet {
namespace {

// Sets the clock while a call is under way, and looks how much of its time is left.
class ClockSetter final : public grpc::health::v1::Health::Service {
 public:
  grpc::Status Check(grpc::ServerContext* context, const grpc::health::v1::HealthCheckRequest*,
                     grpc::health::v1::HealthCheckResponse*) override {
    for (const int64_t ahead : {-700, 700, 0}) {
      wall_clock_ahead = ahead;
      EXPECT_GT(DeadlineOf(*context).left(), absl::Seconds(500)) << ahead;
      EXPECT_LT(DeadlineOf(*context).left(), absl::Seconds(600)) << ahead;
    }
    grpc::ServerContext without;
    EXPECT_TRUE(DeadlineOf(without).never());
    return grpc::Status::OK;
  }
};

TEST(CallDeadline, IsAsFarAwayWhateverTheClockIsSetTo) {
  ClockSetter service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto stub = grpc::health::v1::Health::NewStub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  SetDeadline(&context, Deadline::In(absl::Minutes(10)));
  wall_clock_ahead = 700;  // between the two
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, grpc::health::v1::HealthCheckRequest(), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace
}  // namespace quartet
