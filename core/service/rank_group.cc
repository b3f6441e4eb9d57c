#include "core/service/rank_group.h"

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/comm/agreed_error.h"
#include "core/service/credentials.h"
#include "core/service/rank_executor.h"
#include "core/service/status_conversion.h"
#include "proto/rank.grpc.pb.h"

namespace quartet {
namespace {

// gRPC's default limit is 4 MiB a message; the rest is for the message around an item.
constexpr size_t kMaxItemBytes = (4 << 20) - 4096;
// After a rank of a collective call has failed, how long the others may take to say whether they refused too.
constexpr absl::Duration kFailureGrace = absl::Seconds(2);
// Marks a Rank.Execute error that the handler returned: the connection and the rank are well.
constexpr char kHandlerError[] = "quartet-handler-error";
constexpr char kAgreedError[] = "agreed";  // its value where the error is so marked

std::chrono::system_clock::time_point ToDeadline(absl::Time time) {
  return absl::ToChronoTime(std::min(time, absl::Now() + absl::Hours(24 * 365)));
}

absl::Status Prefixed(const std::string& prefix, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(prefix, ": ", std::string(status.message())));
}

// Errors that a rank can only have found before its first collective, given that all ranks found the same.
bool IsRefusal(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

absl::Status CheckSizes(const std::string& method, int rank, const RankInput& input) {
  if (input.header.size() > kMaxItemBytes) {
    return absl::InvalidArgumentError(absl::StrCat(method, ": the header for rank ", rank, " has ", input.header.size(),
                                                   " bytes; at most ", kMaxItemBytes, " fit into a message"));
  }
  for (size_t i = 0; i < input.items.size(); ++i) {
    if (input.items[i].size() > kMaxItemBytes) {
      return absl::InvalidArgumentError(absl::StrCat(method, ": item ", i, " for rank ", rank, " has ",
                                                     input.items[i].size(), " bytes; at most ", kMaxItemBytes,
                                                     " fit into a message"));
    }
  }
  return absl::OkStatus();
}

// What a handler answers, or its exception as an error.
absl::StatusOr<RankOutput> CallHandler(const RankGroup::Handler& handler, const RankInput& input) {
  try {
    return handler(input);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  }
}

// A value that another thread hands over, or drops.
template <typename T>
class Handover {
 public:
  void Put(T value) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (value_.has_value()) return;
    value_ = std::move(value);
    changed_.notify_all();
  }
  // Nothing after `timeout`.
  std::optional<T> Take(absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout), [this] { return value_.has_value(); })) {
      return std::nullopt;
    }
    return std::move(value_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<T> value_;  // guarded by mutex_
};

using OutputHandover = Handover<absl::StatusOr<RankOutput>>;

// Puts CANCELLED if the work that holds it was dropped before it ran.
struct DropNotice {
  explicit DropNotice(std::shared_ptr<OutputHandover> h) : handover(std::move(h)) {}
  ~DropNotice() { handover->Put(absl::CancelledError("this rank is stopping")); }
  std::shared_ptr<OutputHandover> handover;
};

// Either side's stream.
template <typename Stream>
class StreamPipe : public RankPipe {
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
class LeaderPipe : public RankPipe {
 public:
  using Stream = grpc::ClientReaderWriter<PipeMessage, PipeMessage>;
  // `on_end` is told once, why the other end does not answer any more.
  LeaderPipe(Rank::Stub& stub, const std::string& name, std::function<void(const absl::Status&)> on_end)
      : stream_(stub.Pipe(&context_)), pipe_(stream_.get()), on_end_(std::move(on_end)) {
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
    on_end_(FromGrpc(stream_->Finish()));
    return false;
  }
  // From any thread.
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<Stream> stream_;
  StreamPipe<Stream> pipe_;
  std::function<void(const absl::Status&)> on_end_;
  bool ended_ = false;
};

class RankGroupImpl final : public RankGroup, private Rank::Service {
 public:
  RankGroupImpl(const RankContext& context, std::shared_ptr<grpc::ChannelCredentials> credentials,
                std::function<void(const absl::Status&)> on_broken)
      : context_(context), credentials_(std::move(credentials)), on_broken_(std::move(on_broken)) {
    endpoints_.resize(context.world_size);
    endpoints_[context.rank] = context.endpoint;
  }

  ~RankGroupImpl() override { Stop(); }

  void Register(const std::string& method, Kind kind, Handler handler) override {
    QUARTET_CHECK(methods_.emplace(method, Method{kind, std::move(handler)}).second) << method << " is there already";
  }

  void RegisterPipe(const std::string& name, PipeHandler handler) override {
    QUARTET_CHECK(pipe_handlers_.emplace(name, std::move(handler)).second) << name << " is there already";
  }

  grpc::Service* service() override { return static_cast<Rank::Service*>(this); }

  absl::Status Start(absl::Duration timeout) override {
    endpoints_[rank()] = context_.endpoint;
    if (world_size() == 1) return absl::OkStatus();
    const absl::Time deadline = absl::Now() + timeout;
    const auto key = [](int rank) { return absl::StrCat("rank_group/endpoint/", rank); };
    QUARTET_RETURN_IF_ERROR(context_.store->Set(key(rank()), context_.endpoint));
    std::vector<std::string> keys;
    for (int r = 0; r < world_size(); ++r) keys.push_back(key(r));
    absl::StatusOr<std::vector<std::string>> endpoints = context_.store->Wait(keys, timeout);
    if (!endpoints.ok()) return Prefixed("not all ranks came", endpoints.status());
    endpoints_ = *std::move(endpoints);
    if (!is_leader()) return absl::OkStatus();
    for (int r = 1; r < world_size(); ++r) {
      std::shared_ptr<grpc::Channel> channel = MakeChannel(endpoints_[r], credentials_);
      if (!channel->WaitForConnected(ToDeadline(deadline))) {
        return absl::UnavailableError(absl::StrCat(Name(r), ": cannot be connected to"));
      }
      stubs_.push_back(Rank::NewStub(channel));
    }
    return absl::OkStatus();
  }

  int rank() const override { return context_.rank; }
  int world_size() const override { return context_.world_size; }
  const std::vector<std::string>& endpoints() const override { return endpoints_; }

  absl::StatusOr<std::vector<RankOutput>> Run(const std::string& method, std::vector<RankInput> inputs,
                                              absl::Time deadline) override {
    if (!is_leader()) return absl::FailedPreconditionError(absl::StrCat(method, ": only rank 0 starts calls"));
    auto found = methods_.find(method);
    if (found == methods_.end()) return absl::InternalError(absl::StrCat("no method '", method, "' is registered"));
    if (static_cast<int>(inputs.size()) != world_size()) {
      return absl::InternalError(absl::StrCat(method, ": ", inputs.size(), " inputs for ", world_size(), " ranks"));
    }
    if (world_size() > 1 && stubs_.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(method, ": the ranks are not connected yet"));
    }
    for (int r = 0; r < world_size(); ++r) QUARTET_RETURN_IF_ERROR(CheckSizes(method, r, inputs[r]));
    QUARTET_RETURN_IF_ERROR(end());
    if (stopping_) return absl::UnavailableError(absl::StrCat(method, ": the service is stopping"));

    Call call(method, found->second, std::move(inputs), deadline);
    std::vector<std::thread> threads;
    for (int r = 1; r < world_size(); ++r) threads.emplace_back([this, &call, r] { RunOn(r, &call); });
    RunOnSelf(&call);
    for (std::thread& t : threads) t.join();
    return Join(&call);
  }

  absl::StatusOr<std::shared_ptr<RankPipe>> OpenPipe(int rank, const std::string& name) override {
    if (rank < 1 || rank > static_cast<int>(stubs_.size())) {
      return absl::FailedPreconditionError(
          absl::StrCat("no pipe '", name, "' to rank ", rank, ": only rank 0 opens pipes, to ranks that it has met"));
    }
    auto pipe = std::make_shared<LeaderPipe>(*stubs_[rank - 1], name, [this, rank, name](const absl::Status& status) {
      Break(absl::UnavailableError(absl::StrCat(Name(rank), ": the pipe '", name, "' has ended: ", status.message())));
    });
    std::lock_guard<std::mutex> lock(pipes_mutex_);
    if (stopping_) pipe->Cancel();
    pipes_.push_back(pipe);
    return pipe;
  }

  void EndCalls(const absl::Status& status) override {
    const std::lock_guard<std::mutex> lock(end_mutex_);
    end_.Update(status);
  }

  void Break(const absl::Status& status) override {
    if (!stopping_) Broken(status);
  }

  absl::Status RunHere(const std::function<absl::Status()>& work) override {
    const auto run = [&work]() -> absl::StatusOr<RankOutput> {
      return CallHandler(
          [&work](const RankInput&) -> absl::StatusOr<RankOutput> {
            QUARTET_RETURN_IF_ERROR(work());
            return RankOutput();
          },
          RankInput());
    };
    if (executor_.IsOwnThread()) return run().status();
    auto done = std::make_shared<OutputHandover>();
    auto notice = std::make_shared<DropNotice>(done);
    if (!executor_.Submit([run, done, notice] { done->Put(run()); })) {
      return absl::CancelledError("this rank is stopping");
    }
    notice = nullptr;
    return done->Take(absl::Hours(24 * 365))->status();
  }

  void Stop() override {
    stopping_ = true;
    {
      std::lock_guard<std::mutex> lock(pipes_mutex_);
      for (const auto& pipe : pipes_) pipe->Cancel();
    }
    executor_.Stop();
  }

 private:
  struct Method {
    Kind kind;
    Handler handler;
  };

  // One call on all ranks. The threads that talk to the ranks meet in it twice: when all are ready, and at the end.
  struct Call {
    Call(const std::string& method_name, const Method& m, std::vector<RankInput> in, absl::Time d)
        : name(method_name),
          method(m),
          inputs(std::move(in)),
          deadline(d),
          contexts(inputs.size()),
          outputs(inputs.size(), absl::UnknownError("no answer")) {}

    const std::string name;
    const Method& method;
    std::vector<RankInput> inputs;
    const absl::Time deadline;

    std::mutex mutex;
    std::condition_variable changed;
    int ready = 0;
    int ended = 0;
    bool failed = false;
    bool gone = false;  // all were ready: the call has its number
    bool lost = false;  // a rank could not be reached any more
    bool cut = false;   // by EndCalls
    uint64_t number = 0;
    std::vector<int> failures;  // ranks, in the order in which they failed
    absl::Time grace_end = absl::InfiniteFuture();
    std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
    std::vector<absl::StatusOr<RankOutput>> outputs;
  };

  std::string Name(int r) const {
    return endpoints_[r].empty() ? absl::StrCat("rank ", r) : absl::StrCat("rank ", r, " (", endpoints_[r], ")");
  }

  // This rank holds its part; true once every rank does. The last one draws the call's number.
  bool WaitUntilAllReady(Call* call) {
    std::unique_lock<std::mutex> lock(call->mutex);
    if (++call->ready == world_size() && !call->failed) {
      call->gone = true;
      if (call->method.kind != Kind::kConcurrent) call->number = ++last_number_;
    }
    call->changed.notify_all();
    const auto told = [call] { return call->gone || call->failed; };
    while (!call->changed.wait_for(lock, std::chrono::milliseconds(50), told)) {
      call->cut = !end().ok();
      if (call->cut || absl::Now() > call->deadline) Fail(call, -1);
    }
    return call->gone;
  }

  // Under the call's lock. Before `go` the others need not go on; after it they get a short while.
  void Fail(Call* call, int r) {
    if (r >= 0) call->failures.push_back(r);
    const bool first = !call->failed;
    call->failed = true;
    if (!call->gone) {
      for (auto& context : call->contexts) {
        if (context != nullptr) context->TryCancel();
      }
    } else if (first && call->method.kind == Kind::kCollective) {
      call->grace_end = absl::Now() + kFailureGrace;
    }
    call->changed.notify_all();
  }

  void End(Call* call, int r, absl::StatusOr<RankOutput> output, bool lost) {
    std::lock_guard<std::mutex> lock(call->mutex);
    const bool ok = output.ok();
    call->outputs[r] = std::move(output);
    call->lost |= lost && call->gone;
    ++call->ended;
    if (!ok) Fail(call, r);
    call->changed.notify_all();
  }

  // On the executor thread in the order of the numbers, or on one of its own. False: this rank is stopping.
  bool StartHandler(const Method& method, uint64_t number, std::jthread* beside, std::function<void()> work) {
    if (method.kind != Kind::kConcurrent) return executor_.SubmitNumbered(number, std::move(work));
    if (stopping_) return false;
    *beside = std::jthread(std::move(work));
    return true;
  }

  void RunOnSelf(Call* call) {
    if (!WaitUntilAllReady(call)) {
      End(call, 0, absl::AbortedError("another rank was not ready"), false);
      return;
    }
    auto handover = std::make_shared<OutputHandover>();
    auto notice = std::make_shared<DropNotice>(handover);
    auto input = std::make_shared<RankInput>(std::move(call->inputs[0]));
    const Handler& handler = call->method.handler;
    std::jthread beside;  // joined when this call returns
    const bool accepted = StartHandler(call->method, call->number, &beside, [handover, notice, input, &handler] {
      handover->Put(CallHandler(handler, *input));
    });
    notice = nullptr;
    if (!accepted) handover->Put(absl::CancelledError("this rank is stopping"));

    // Also the watch over the others: a rank that hangs after another has failed is not waited for till the deadline.
    std::optional<absl::StatusOr<RankOutput>> output;
    bool ended = false;
    for (;;) {
      if (!ended) {
        output = handover->Take(absl::Milliseconds(world_size() == 1 ? 50 : 5));
        if (output.has_value()) {
          End(call, 0, *std::move(output), false);
          ended = true;
        } else if (absl::Now() > call->deadline) {
          End(call, 0, absl::DeadlineExceededError("no answer in time"), false);
          ended = true;
        }
      }
      const bool cut = !end().ok();
      std::unique_lock<std::mutex> lock(call->mutex);
      if (cut && !call->cut) {
        call->cut = true;
        call->grace_end = absl::InfinitePast();
      }
      if (ended) {
        call->changed.wait_for(lock, std::chrono::milliseconds(50),
                               [this, call] { return call->ended == world_size(); });
        if (call->ended == world_size()) return;
      }
      if (absl::Now() > call->grace_end) {
        for (auto& context : call->contexts) {
          if (context != nullptr) context->TryCancel();
        }
        if (!ended) {
          lock.unlock();
          End(call, 0, absl::AbortedError(cut ? "still running" : "still running after another rank failed"), false);
          ended = true;
        }
      }
    }
  }

  void RunOn(int r, Call* call) {
    grpc::ClientContext* context;
    {
      std::lock_guard<std::mutex> lock(call->mutex);
      call->contexts[r] = std::make_unique<grpc::ClientContext>();
      context = call->contexts[r].get();
      context->set_deadline(ToDeadline(call->deadline));
      if (call->failed) context->TryCancel();
    }
    auto stream = stubs_[r - 1]->Execute(context);
    RankRequest request;
    RankReply reply;
    RankInput& input = call->inputs[r];
    request.mutable_begin()->set_method(call->name);
    request.mutable_begin()->set_header(std::move(input.header));
    request.mutable_begin()->set_num_items(input.items.size());
    bool ok = stream->Write(request);
    for (std::string& item : input.items) {
      if (!ok) break;
      request.set_item(std::move(item));
      ok = stream->Write(request);
    }
    RankOutput output;
    bool done = false;
    if (ok && stream->Read(&reply) && reply.has_ready() && WaitUntilAllReady(call)) {
      request.mutable_go()->set_call_number(call->number);
      if (stream->Write(request)) {
        stream->WritesDone();
        while (stream->Read(&reply)) {
          if (reply.has_done()) {
            output.summary = std::move(*reply.mutable_done()->mutable_summary());
            done = true;
          } else {
            output.items.push_back(std::move(*reply.mutable_item()));
          }
        }
      }
    }
    absl::Status status = FromGrpc(stream->Finish());
    if (status.ok() && done) {
      End(call, r, std::move(output), false);
      return;
    }
    const auto mark = context->GetServerTrailingMetadata().find(kHandlerError);
    const bool by_handler = mark != context->GetServerTrailingMetadata().end();
    if (by_handler && mark->second == kAgreedError) MarkAgreed(&status);
    const bool lost = !by_handler && status.code() != absl::StatusCode::kDeadlineExceeded &&
                      status.code() != absl::StatusCode::kCancelled;
    End(call, r, status.ok() ? absl::InternalError("the rank ended its answer early") : status, lost);
  }

  absl::StatusOr<std::vector<RankOutput>> Join(Call* call) {
    std::lock_guard<std::mutex> lock(call->mutex);
    if (!call->failed) {
      std::vector<RankOutput> outputs;
      for (absl::StatusOr<RankOutput>& output : call->outputs) outputs.push_back(*std::move(output));
      return outputs;
    }
    // The first failure is the cause; those of the ranks that were cut off because of it say nothing.
    absl::Status error;
    std::vector<std::string> late;
    for (int r : call->failures) {
      const absl::Status status = call->outputs[r].status();
      if (status.code() == absl::StatusCode::kDeadlineExceeded) {
        late.push_back(Name(r));
      } else if (error.ok() && status.code() != absl::StatusCode::kCancelled &&
                 status.code() != absl::StatusCode::kAborted) {
        error = Prefixed(Name(r), status);
      }
    }
    if (call->cut) {
      const absl::Status why = end();
      if (error.ok()) return why;
      if (absl::StrContains(error.message(), why.message())) return error;
      return absl::Status(error.code(), absl::StrCat(error.message(), "; ", why.message()));
    }
    if (error.ok() && !late.empty()) {
      error =
          absl::DeadlineExceededError(absl::StrCat(call->name, ": no answer in time from ", absl::StrJoin(late, ", ")));
    }
    if (error.ok() && !call->gone && absl::Now() >= call->deadline) {
      error = absl::DeadlineExceededError(absl::StrCat(call->name, ": not all ranks were ready in time"));
    }
    if (error.ok() && !call->failures.empty()) {
      const int r = call->failures.front();
      error = Prefixed(Name(r), call->outputs[r].status());
    }

    bool in_step = static_cast<int>(call->failures.size()) == world_size();
    for (const absl::StatusOr<RankOutput>& output : call->outputs) {
      const bool refused =
          output.status().code() == call->outputs[0].status().code() && IsRefusal(output.status().code());
      in_step = in_step && (refused || IsAgreed(output.status()));
    }
    const bool collective = call->method.kind == Kind::kCollective;
    if (call->gone && !stopping_ && (call->lost || (collective && !in_step && world_size() > 1))) {
      Broken(Prefixed(call->name, error));
    }
    return error;
  }

  // What EndCalls has said.
  absl::Status end() const {
    const std::lock_guard<std::mutex> lock(end_mutex_);
    return end_;
  }

  void Broken(const absl::Status& status) {
    if (broken_.exchange(true)) return;
    stopping_ = true;
    if (on_broken_) on_broken_(status);
  }

  // A follower's side of a call.
  grpc::Status Execute(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<RankReply, RankRequest>* stream) override {
    if (is_leader()) return {grpc::StatusCode::FAILED_PRECONDITION, "this is rank 0, which nobody else leads"};
    RankRequest request;
    if (!stream->Read(&request) || !request.has_begin()) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "the first message is not `begin`"};
    }
    const std::string name = request.begin().method();
    auto found = methods_.find(name);
    if (found == methods_.end()) return {grpc::StatusCode::UNIMPLEMENTED, "no method '" + name + "' is registered"};
    auto input = std::make_shared<RankInput>();
    const uint64_t num_items = request.begin().num_items();
    input->header = std::move(*request.mutable_begin()->mutable_header());
    while (input->items.size() < num_items) {
      if (!stream->Read(&request) || request.kind_case() != RankRequest::kItem) {
        return {grpc::StatusCode::INVALID_ARGUMENT,
                absl::StrCat("expected ", num_items, " items, received ", input->items.size())};
      }
      input->items.push_back(std::move(*request.mutable_item()));
    }
    RankReply reply;
    reply.mutable_ready();
    if (!stream->Write(reply)) return grpc::Status::CANCELLED;
    if (!stream->Read(&request)) return grpc::Status::CANCELLED;  // given up before `go`: no effect
    if (!request.has_go()) return {grpc::StatusCode::INVALID_ARGUMENT, "expected `go`"};

    auto handover = std::make_shared<OutputHandover>();
    auto notice = std::make_shared<DropNotice>(handover);
    const Handler& handler = found->second.handler;
    std::jthread beside;  // joined when this call returns
    if (!StartHandler(found->second, request.go().call_number(), &beside,
                      [handover, notice, input, &handler] { handover->Put(CallHandler(handler, *input)); })) {
      return {grpc::StatusCode::UNAVAILABLE, "this rank is stopping"};
    }
    notice = nullptr;
    std::optional<absl::StatusOr<RankOutput>> output;
    while (!(output = handover->Take(absl::Milliseconds(100))).has_value()) {
      if (const absl::Status why = end(); !why.ok()) return ToGrpc(why);
      if (context->IsCancelled() && !stopping_) {
        // Nobody waits for the answer, but what was begun together must end together.
        const absl::Status status = absl::AbortedError(absl::StrCat(name, ": rank 0 gave up the call or is gone"));
        if (found->second.kind == Kind::kCollective) Broken(status);
        return ToGrpc(status);
      }
    }
    if (!output->ok()) {
      context->AddTrailingMetadata(kHandlerError, IsAgreed(output->status()) ? kAgreedError : "1");
      return ToGrpc(output->status());
    }
    for (size_t i = 0; i < (*output)->items.size(); ++i) {
      std::string& item = (*output)->items[i];
      if (item.size() > kMaxItemBytes) {
        return {grpc::StatusCode::INTERNAL, absl::StrCat(name, ": item ", i, " of the answer has ", item.size(),
                                                         " bytes; at most ", kMaxItemBytes)};
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
  std::map<std::string, Method> methods_;             // constant after Start
  std::map<std::string, PipeHandler> pipe_handlers_;  // constant after Start
  std::vector<std::string> endpoints_;                // constant after Start
  std::vector<std::unique_ptr<Rank::Stub>> stubs_;    // of ranks 1 and up; constant after Start
  std::atomic<uint64_t> last_number_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> broken_{false};
  mutable std::mutex end_mutex_;
  absl::Status end_;  // guarded by end_mutex_
  std::mutex pipes_mutex_;
  std::vector<std::shared_ptr<LeaderPipe>> pipes_;  // guarded by pipes_mutex_
  RankExecutor executor_;
};

}  // namespace

std::unique_ptr<RankGroup> RankGroup::Create(const RankContext& context,
                                             std::shared_ptr<grpc::ChannelCredentials> credentials,
                                             std::function<void(const absl::Status&)> on_broken) {
  return std::make_unique<RankGroupImpl>(context, std::move(credentials), std::move(on_broken));
}

}  // namespace quartet
