// What the typed clients share: the connection, and the three forms of a call. With gRPC; for the clients alone.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"
#include "core/base/trace.h"
#include "core/cancellation/cancellation.h"
#include "core/clients/health_watch.h"
#include "core/clients/replies.h"
#include "core/clients/service_clients.h"
#include "core/service/rpc/call_deadline.h"
#include "core/service/rpc/status_conversion.h"

namespace quartet {

// Which of a run's orchestrators this is, for all its clients: one that comes later has a higher number. Time orders
// them, but where the clock was set back. Thread safe.
class Incarnation {
 public:
  explicit Incarnation(uint64_t epoch) : epoch_(epoch) {}
  // A service has had a call of this number: this is a later one, if it has made none of its own yet.
  void Follow(uint64_t epoch);
  // That of its calls, from now on for good.
  uint64_t Use();

 private:
  std::mutex mutex_;
  uint64_t epoch_;     // guarded by mutex_
  bool used_ = false;  // likewise
};

struct ServiceClient::Connection {
  std::string service;
  std::string address;     // host:port of the leader
  absl::Duration timeout;  // of each call
  // Name the run in the identity of each call.
  std::string run_dir;
  std::shared_ptr<Incarnation> incarnation;
  Cancellation* cancellation = nullptr;
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  std::shared_ptr<grpc::Channel> channel;
  std::optional<HealthWatch> health_watch;
  bool own_user_only = true;  // talks to programs of this user, or root, alone: nothing else says who is there
  // GetInfo is the same call in each service, on its own stub.
  std::function<grpc::Status(const std::shared_ptr<grpc::Channel>&, grpc::ClientContext*, const GetInfoRequest&,
                             ServiceInfo*)>
      get_info;

  std::mutex mutex;
  uint64_t last_sequence = 0;

  // Of the next call that changes state.
  CallIdentity NextIdentity(uint64_t step);
  // PERMISSION_DENIED where another user's program listens at `address`, with what to do. OK where nobody does.
  absl::Status CheckOwner() const;
  // The error of a call, with the service, its address and what to do.
  absl::Status Explain(const std::string& call, const absl::Status& status) const;
  // INTERNAL: the call was answered, but not as it was asked.
  absl::Status BadReply(const std::string& call, const std::string& what) const;
  // What core/clients/replies.h says of the replies.
  template <typename Answer>
  absl::StatusOr<Answer> Answered(const std::string& call, absl::StatusOr<Answer> answer) const {
    if (!answer.ok()) return BadReply(call, std::string(answer.status().message()));
    return answer;
  }
};

// The context of one call: deadline, the end of the call when the run is cancelled, and its span in a trace.
class CallContext {
 public:
  // `call` is its name; "": it has no span.
  CallContext(const ServiceClient::Connection& connection, const std::string& call)
      : CallContext(connection, call, connection.timeout) {}
  CallContext(const ServiceClient::Connection& connection, std::string call, absl::Duration timeout)
      : service_(connection.service),
        call_(std::move(call)),
        start_(call_.empty() ? 0 : TraceNow()),
        scope_(connection.cancellation, [this] { context_.TryCancel(); }) {
    context_.set_deadline(FromNow(timeout));
  }
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;
  ~CallContext() { TraceSpent("calls of " + service_, call_, start_, TraceNow()); }
  grpc::ClientContext* get() { return &context_; }

 private:
  const std::string service_, call_;
  const int64_t start_;
  grpc::ClientContext context_;
  Cancellation::Scope scope_;  // after context_: ends first
};

// One message each way.
template <typename Stub, typename Request, typename Reply>
absl::StatusOr<Reply> Ask(const ServiceClient::Connection& connection, const std::string& call,
                          grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                          const Request& request) {
  CallContext context(connection, call);
  Stub stub(connection.channel);
  Reply reply;
  QUARTET_RETURN_IF_ERROR(connection.Explain(call, FromGrpc((stub.*method)(context.get(), request, &reply))));
  return reply;
}

// Writes an item of a batch into its message.
template <typename Item>
void PutItem(const Item& item, size_t /*place*/, Item* message) {
  *message = item;
}
inline void PutItem(const TokenSequence* item, size_t place, TokenSequence* message) {
  *message = *item;
  message->set_index(place);
}

// Sends header and items. False where the other side has ended the call; its status says why.
template <typename Request, typename Header, typename Item, typename Stream>
bool SendBatch(Stream& stream, Header header, absl::Span<const Item> items) {
  header.set_num_items(items.size());
  Request request;
  *request.mutable_header() = std::move(header);
  if (!stream.Write(request)) return false;
  for (size_t i = 0; i < items.size(); ++i) {
    PutItem(items[i], i, request.mutable_item());
    if (!stream.Write(request)) return false;
  }
  return stream.WritesDone();
}

// A batch one way, one message the other.
template <typename Stub, typename Request, typename Reply, typename Header, typename Item>
absl::StatusOr<Reply> SendAll(const ServiceClient::Connection& connection, const std::string& call,
                              std::unique_ptr<grpc::ClientWriter<Request>> (Stub::*method)(grpc::ClientContext*,
                                                                                           Reply*),
                              Header header, const std::vector<Item>& items) {
  CallContext context(connection, call);
  Stub stub(connection.channel);
  Reply reply;
  const auto stream = (stub.*method)(context.get(), &reply);
  SendBatch<Request>(*stream, std::move(header), absl::MakeConstSpan(items));
  QUARTET_RETURN_IF_ERROR(connection.Explain(call, FromGrpc(stream->Finish())));
  return reply;
}

// Sequences one way, replies the other. Servers read the whole batch before they answer.
template <typename Stub, typename Request, typename Reply, typename Header>
absl::StatusOr<std::vector<Reply>> Exchange(
    const ServiceClient::Connection& connection, const std::string& call,
    std::unique_ptr<grpc::ClientReaderWriter<Request, Reply>> (Stub::*method)(grpc::ClientContext*), Header header,
    SequenceSpan sequences) {
  CallContext context(connection, call);
  Stub stub(connection.channel);
  const auto stream = (stub.*method)(context.get());
  SendBatch<Request>(*stream, std::move(header), sequences);
  std::vector<Reply> replies;
  Reply reply;
  while (stream->Read(&reply)) replies.push_back(std::move(reply));
  QUARTET_RETURN_IF_ERROR(connection.Explain(call, FromGrpc(stream->Finish())));
  return replies;
}

// An Exchange whose replies are the values of one sequence each: in the order of `sequences`.
template <typename Stub, typename Request, typename Reply, typename Header>
absl::StatusOr<std::vector<std::vector<float>>> ExchangeValues(
    const ServiceClient::Connection& connection, const std::string& call,
    std::unique_ptr<grpc::ClientReaderWriter<Request, Reply>> (Stub::*method)(grpc::ClientContext*), Header header,
    SequenceSpan sequences, const TokenValues& (Reply::*values_of)() const, ValuesOf of = ValuesOf::kActionTokens) {
  QUARTET_ASSIGN_OR_RETURN(const std::vector<Reply> replies,
                           Exchange(connection, call, method, std::move(header), sequences));
  std::vector<const TokenValues*> values;
  for (const Reply& reply : replies) values.push_back(&(reply.*values_of)());
  return connection.Answered(call, OrderTokenValues(sequences, values, of));
}

}  // namespace quartet
