// Both ends of a pipe between the leader and another rank, over a gRPC stream.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <memory>
#include <string>
#include <utility>

#include "core/service/ranks/group/rank_group.h"
#include "core/service/rpc/status_conversion.h"
#include "proto/rank.grpc.pb.h"

namespace quartet {

template <typename Stream>
class StreamPipe final : public RankPipe {
 public:
  explicit StreamPipe(Stream* stream) : stream_(stream) {}
  bool Write(std::string message) override {
    PipeMessage out;
    out.set_data(std::move(message));
    return stream_->Write(out);
  }
  bool Read(std::string* message) override {
    PipeMessage in;
    if (!stream_->Read(&in) || !in.has_data()) return false;
    *message = std::move(*in.mutable_data());
    return true;
  }

 private:
  Stream* stream_;
};

// The leader's end.
class LeaderPipe final : public RankPipe {
 public:
  LeaderPipe(Rank::Stub& stub, const std::string& name) : stream_(stub.Pipe(&context_)), pipe_(stream_.get()) {
    PipeMessage open;
    open.set_open(name);
    stream_->Write(open);
  }
  bool Write(std::string message) override { return pipe_.Write(std::move(message)); }
  bool Read(std::string* message) override {
    if (ended_) return false;
    if (pipe_.Read(message)) return true;
    ended_ = true;
    context_.TryCancel();
    why_ended_ = std::string(FromGrpc(stream_->Finish()).message());
    return false;
  }
  std::string WhyEnded() const override { return why_ended_; }
  void Cancel() override { context_.TryCancel(); }

 private:
  using Stream = grpc::ClientReaderWriter<PipeMessage, PipeMessage>;
  grpc::ClientContext context_;
  std::unique_ptr<Stream> stream_;
  StreamPipe<Stream> pipe_;
  // Of the thread that reads.
  bool ended_ = false;
  std::string why_ended_;
};

}  // namespace quartet
