// What a rank holds of each lane that it is an end of.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "core/service/ranks/group/serial_thread.h"
#include "proto/rank.grpc.pb.h"

namespace quartet {

// What is to be written, in order.
using Outbox = SerialThread<RankMessage>;

// This rank's end of a lane; nothing of it once the lane has ended.
struct LaneEnd {
  std::shared_ptr<Outbox> outbox;
  std::function<void(const absl::Status&)> cancel;
  int unanswered = 0;  // of what the leader has asked
};

// A follower's, for as long as this rank is there.
struct FollowerEnd {
  explicit FollowerEnd(const std::shared_ptr<grpc::Channel>& leader)
      : stub(Rank::NewStub(leader)), stream(stub->Lane(&context)) {}
  grpc::ClientContext context;
  const std::unique_ptr<Rank::Stub> stub;
  const std::unique_ptr<grpc::ClientReaderWriter<RankMessage, RankMessage>> stream;
  const std::shared_ptr<Outbox> outbox = std::make_shared<Outbox>([this](const RankMessage& out) {
    // What cannot be written, the reader hears of.
    out.kind_case() == RankMessage::KIND_NOT_SET ? stream->WritesDone() : stream->Write(out);
  });
  std::thread reader;
};

}  // namespace quartet
