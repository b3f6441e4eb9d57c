#include "core/service/ranks/group/rank_group.h"

#include <grpcpp/server_context.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/trace.h"
#include "core/comm/agreed_error.h"
#include "core/service/ranks/group/leader_call.h"
#include "core/service/ranks/group/own_rank.h"
#include "core/service/ranks/group/rank_pipe.h"
#include "core/service/rpc/call_deadline.h"
#include "core/service/rpc/credentials.h"
#include "core/service/rpc/status_conversion.h"
#include "proto/rank.grpc.pb.h"

namespace quartet {
namespace {

// How often a follower looks whether anybody still waits for what it does.
constexpr absl::Duration kTurnPoll = absl::Milliseconds(100);

absl::Status CheckSizes(const std::string& method, int rank, const RankInput& input) {
  if (input.header.size() > kMaxRankItemBytes) {
    return absl::InvalidArgumentError(absl::StrCat(method, ": the header for rank ", rank, " has ", input.header.size(),
                                                   " bytes; at most ", kMaxRankItemBytes, " fit into a message"));
  }
  for (size_t i = 0; i < input.items.size(); ++i) {
    if (input.items[i].size() > kMaxRankItemBytes) {
      return absl::InvalidArgumentError(absl::StrCat(method, ": item ", i, " for rank ", rank, " has ",
                                                     input.items[i].size(), " bytes; at most ", kMaxRankItemBytes,
                                                     " fit into a message"));
    }
  }
  return absl::OkStatus();
}

class RankGroupImpl final : public RankGroup, private Rank::Service {
 public:
  RankGroupImpl(const RankContext& context, std::shared_ptr<grpc::ChannelCredentials> credentials,
                std::function<void(const absl::Status&)> on_broken)
      : context_(context), credentials_(std::move(credentials)), on_broken_(std::move(on_broken)) {
    endpoints_.resize(context.world_size);
    endpoints_[context.rank] = context.endpoint;
    NameRanks();
  }

  ~RankGroupImpl() override { Stop(); }

  void Register(const std::string& method, Kind kind, Handler handler) override {
    if (kind != Kind::kConcurrent) {
      handler = [method, handler = std::move(handler)](const RankInput& input) {
        const TraceScope span(method);
        return handler(input);
      };
    }
    own_.Register(method, kind, std::move(handler));
  }

  void RegisterPipe(const std::string& name, PipeHandler handler) override {
    QUARTET_CHECK(pipe_handlers_.emplace(name, std::move(handler)).second) << name << " is there already";
  }

  grpc::Service* service() override { return static_cast<Rank::Service*>(this); }

  absl::Status Start(absl::Duration timeout) override {
    endpoints_[rank()] = context_.endpoint;
    const Deadline deadline = Deadline::In(timeout);
    if (world_size() > 1) {
      const auto key = [](int rank) { return absl::StrCat("rank_group/endpoint/", rank); };
      QUARTET_RETURN_IF_ERROR(context_.store->Set(key(rank()), context_.endpoint));
      std::vector<std::string> keys;
      for (int r = 0; r < world_size(); ++r) keys.push_back(key(r));
      QUARTET_ASSIGN_OR_RETURN(endpoints_, Prefixed("not all ranks came", context_.store->Wait(keys, timeout)));
    }
    NameRanks();
    for (int r = 1; r < world_size() && is_leader(); ++r) {
      std::shared_ptr<grpc::Channel> channel = MakeChannel(endpoints_[r], credentials_);
      if (!channel->WaitForConnected(FromNow(deadline.left()))) {
        return absl::UnavailableError(absl::StrCat(names_[r], ": cannot be connected to"));
      }
      stubs_.push_back(Rank::NewStub(channel));
    }
    started_ = true;
    return absl::OkStatus();
  }

  int rank() const override { return context_.rank; }
  int world_size() const override { return context_.world_size; }
  const std::vector<std::string>& endpoints() const override { return endpoints_; }

  absl::StatusOr<std::vector<RankOutput>> Run(const std::string& method, std::vector<RankInput> inputs,
                                              const Deadline& deadline) override {
    if (!is_leader()) return absl::FailedPreconditionError(absl::StrCat(method, ": only rank 0 starts calls"));
    const RankMethod* found = own_.Find(method);
    if (found == nullptr) return absl::InternalError(absl::StrCat("no method '", method, "' is registered"));
    if (static_cast<int>(inputs.size()) != world_size()) {
      return absl::InternalError(absl::StrCat(method, ": ", inputs.size(), " inputs for ", world_size(), " ranks"));
    }
    if (!started_) return absl::FailedPreconditionError(absl::StrCat(method, ": the ranks are not connected yet"));
    for (int r = 0; r < world_size(); ++r) QUARTET_RETURN_IF_ERROR(CheckSizes(method, r, inputs[r]));
    QUARTET_RETURN_IF_ERROR(own_.end());
    if (own_.stopping()) return absl::UnavailableError(absl::StrCat(method, ": the service is stopping"));
    LeaderCall call(method, *found, std::move(inputs), deadline, context_.collective_timeout, stubs_, names_, own_,
                    last_number_);
    absl::StatusOr<std::vector<RankOutput>> outputs = call.Run();
    if (!call.broken().ok()) Break(call.broken());
    return outputs;
  }

  absl::StatusOr<std::shared_ptr<RankPipe>> OpenPipe(int rank, const std::string& name) override {
    if (rank < 1 || rank > static_cast<int>(stubs_.size())) {
      return absl::FailedPreconditionError(
          absl::StrCat("no pipe '", name, "' to rank ", rank, ": only rank 0 opens pipes, to ranks that it has met"));
    }
    auto pipe = std::make_shared<LeaderPipe>(*stubs_[rank - 1], name);
    std::lock_guard<std::mutex> lock(pipes_mutex_);
    if (own_.stopping()) pipe->Cancel();
    pipes_.push_back(pipe);
    return pipe;
  }

  void EndCalls(const absl::Status& status) override { own_.EndCalls(status); }

  void Break(const absl::Status& status) override {
    if (own_.stopping() || broken_.exchange(true)) return;
    own_.Refuse();
    if (on_broken_) on_broken_(status);
  }

  absl::Status RunHere(const std::function<absl::Status()>& work) override { return own_.RunHere(work); }

  void Stop() override {
    own_.Refuse();
    {
      std::lock_guard<std::mutex> lock(pipes_mutex_);
      for (const auto& pipe : pipes_) pipe->Cancel();
    }
    own_.Stop();
  }

 private:
  void NameRanks() {
    names_.clear();
    for (int r = 0; r < world_size(); ++r) {
      names_.push_back(absl::StrCat("rank ", r, endpoints_[r].empty() ? "" : absl::StrCat(" (", endpoints_[r], ")")));
    }
  }

  // A follower's side of a call.
  grpc::Status Execute(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<RankReply, RankRequest>* stream) override {
    return ToGrpc([&] { return DoExecute(context, stream); });
  }

  grpc::Status DoExecute(grpc::ServerContext* context, grpc::ServerReaderWriter<RankReply, RankRequest>* stream) {
    if (is_leader()) return {grpc::StatusCode::FAILED_PRECONDITION, "this is rank 0, which nobody else leads"};
    RankRequest request;
    if (!stream->Read(&request) || !request.has_begin()) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "the first message is not `begin`"};
    }
    const std::string name = request.begin().method();
    const RankMethod* found = own_.Find(name);
    if (found == nullptr) return {grpc::StatusCode::UNIMPLEMENTED, "no method '" + name + "' is registered"};
    RankInput input;
    const uint64_t num_items = request.begin().num_items();
    input.header = std::move(*request.mutable_begin()->mutable_header());
    while (input.items.size() < num_items) {
      if (!stream->Read(&request) || request.kind_case() != RankRequest::kItem) {
        return {grpc::StatusCode::INVALID_ARGUMENT,
                absl::StrCat("expected ", num_items, " items, received ", input.items.size())};
      }
      input.items.push_back(std::move(*request.mutable_item()));
    }
    RankReply reply;
    reply.mutable_ready();
    if (!stream->Write(reply)) return grpc::Status::CANCELLED;
    if (!stream->Read(&request)) return grpc::Status::CANCELLED;  // given up before `go`: no effect
    if (!request.has_go()) return {grpc::StatusCode::INVALID_ARGUMENT, "expected `go`"};
    const RankGo& go = request.go();
    const Deadline begin_by =
        go.has_begin_within_ms() ? Deadline::In(absl::Milliseconds(go.begin_within_ms())) : Deadline::Never();

    std::jthread beside;  // joined when this call returns
    const bool asks = found->kind == Kind::kCollective;
    const std::shared_ptr<HandlerRun> run = own_.Start(*found, go.call_number(), std::move(input), asks, &beside);
    const absl::Cleanup no_effect_from_now_on = [&run] { run->Withdraw(absl::CancelledError("the call has ended")); };
    const auto has_ended = [&] {
      if (context->IsCancelled()) return grpc::Status::CANCELLED;
      return ToGrpc(own_.end());
    };
    bool has_turn = false;
    while (asks && !has_turn && !begin_by.passed()) {
      has_turn = run->AwaitTurn(kTurnPoll);
      if (grpc::Status ended = has_ended(); !ended.ok()) return ended;
    }
    if (has_turn) {
      reply.mutable_next();
      if (!stream->Write(reply) || !stream->Read(&request) || !request.has_begin_now()) return grpc::Status::CANCELLED;
      run->Permit();  // and it runs, as on all other ranks, whatever the time is
    }
    std::optional<absl::StatusOr<RankOutput>> output;
    do {
      if (grpc::Status ended = has_ended(); !ended.ok()) return ended;
      if (!has_turn && begin_by.passed()) run->Withdraw(absl::DeadlineExceededError("it has not begun in time"));
    } while (!(output = run->Take(kTurnPoll)).has_value());
    if (!output->ok()) {
      context->AddTrailingMetadata(kHandlerError, IsAgreed(output->status()) ? kAgreedError : "1");
      return ToGrpc(output->status());
    }
    for (size_t i = 0; i < (*output)->items.size(); ++i) {
      std::string& item = (*output)->items[i];
      if (item.size() > kMaxRankItemBytes) {
        return {grpc::StatusCode::INTERNAL, absl::StrCat(name, ": item ", i, " of the answer has ", item.size(),
                                                         " bytes; at most ", kMaxRankItemBytes)};
      }
      reply.set_item(std::move(item));
      if (!stream->Write(reply)) return grpc::Status::CANCELLED;
    }
    reply.mutable_done()->set_summary(std::move((*output)->summary));
    stream->Write(reply);
    return grpc::Status::OK;
  }

  // A follower's side of a pipe.
  grpc::Status Pipe(grpc::ServerContext*, grpc::ServerReaderWriter<PipeMessage, PipeMessage>* stream) override {
    return ToGrpc([&] { return DoPipe(stream); });
  }

  grpc::Status DoPipe(grpc::ServerReaderWriter<PipeMessage, PipeMessage>* stream) {
    PipeMessage first;
    if (!stream->Read(&first) || !first.has_open()) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "the first message is not `open`"};
    }
    const auto handler = pipe_handlers_.find(first.open());
    if (handler == pipe_handlers_.end()) {
      return {grpc::StatusCode::UNIMPLEMENTED, absl::StrCat("no pipe '", first.open(), "' is registered")};
    }
    StreamPipe<grpc::ServerReaderWriter<PipeMessage, PipeMessage>> pipe(stream);
    handler->second(pipe);
    return grpc::Status::OK;
  }

  const RankContext& context_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  const std::function<void(const absl::Status&)> on_broken_;
  // Constant after Start.
  std::map<std::string, PipeHandler> pipe_handlers_;
  std::vector<std::string> endpoints_;
  std::vector<std::string> names_;  // of all ranks, in messages
  LeaderCall::Stubs stubs_;         // on the leader
  std::atomic<bool> started_{false};

  OwnRank own_;
  std::atomic<uint64_t> last_number_{0};
  std::atomic<bool> broken_{false};
  std::mutex pipes_mutex_;
  std::vector<std::shared_ptr<LeaderPipe>> pipes_;  // guarded by pipes_mutex_
};

}  // namespace

std::unique_ptr<RankGroup> RankGroup::Create(const RankContext& context,
                                             std::shared_ptr<grpc::ChannelCredentials> credentials,
                                             std::function<void(const absl::Status&)> on_broken) {
  return std::make_unique<RankGroupImpl>(context, std::move(credentials), std::move(on_broken));
}

}  // namespace quartet
