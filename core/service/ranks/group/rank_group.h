// How the leader makes every rank of a service do its part of a call. Knows no service and no LibTorch.
#pragma once

#include <any>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/service/ranks/rank_context.h"
#include "google/protobuf/message_lite.h"

namespace grpc {
class ChannelCredentials;
class Service;
}  // namespace grpc

namespace quartet {

// One rank's part of a call: serialised protocol buffers.
struct RankInput {
  std::string header;
  std::vector<std::string> items;
  // The leader's own part may have its items here instead, as they are: the std::vector<Item> of RegisterTyped.
  std::any own_items;
};
struct RankOutput {
  std::string summary;
  std::vector<std::string> items;
};

// One end of a two-way stream of messages between the leader and one other rank. One thread may read while one other
// writes.
class RankPipe {
 public:
  virtual ~RankPipe() = default;
  // False: the pipe has ended. At most kMaxMessageBytes less 4 KiB a message.
  virtual bool Write(std::string message) = 0;
  virtual bool Read(std::string* message) = 0;
  // For the thread that reads, once Read has failed: what the transport says of it, if anything.
  virtual std::string WhyEnded() const { return ""; }
  // Of the leader's end, from any thread: Read and Write fail at both ends.
  virtual void Cancel() {}
};

// The ranks of one service.
//
// Every rank registers the same methods before Start. The leader then calls Run; the handler of `method` runs once on
// every rank, on that rank's executor thread: the only thread that may enter LibTorch or a collective. Calls run in
// the same order on all ranks (proto/rank.proto has the protocol).
//
// Thread safe after Start.
class RankGroup {
 public:
  using Handler = std::function<absl::StatusOr<RankOutput>(const RankInput&)>;

  // Whether a handler enters collectives. If one that does fails on any rank after all were told to go, the process
  // group cannot be trusted any more: `on_broken` is called (RankMain leaves the process then). The exception is a call
  // that every rank refused alike, which no rank can have done from inside a collective: the same code on all ranks,
  // one of INVALID_ARGUMENT, FAILED_PRECONDITION, NOT_FOUND, ALREADY_EXISTS, OUT_OF_RANGE, DATA_LOSS, UNIMPLEMENTED;
  // and an error that all ranks have agreed on (core/comm/agreed_error.h), whatever its code. A rank that cannot be
  // reached breaks the group, whatever the kind.
  //
  // A concurrent handler runs beside the executor thread, on a thread of its call, in no order with other calls: for
  // what must not wait behind long computations. It must not enter LibTorch's operators or collectives.
  enum class Kind { kCollective, kIndependent, kConcurrent };

  // `context` must outlive the group; its `endpoint` and `store` are read by Start. With one rank neither is needed.
  // `on_broken` is called at most once, from any thread.
  static std::unique_ptr<RankGroup> Create(const RankContext& context,
                                           std::shared_ptr<grpc::ChannelCredentials> credentials,
                                           std::function<void(const absl::Status&)> on_broken);
  virtual ~RankGroup() = default;

  virtual void Register(const std::string& method, Kind kind, Handler handler) = 0;

  // `handler` runs on a thread of its own on each rank but the leader when that opens the pipe `name`; the pipe ends
  // with it. Read and Write fail once the leader is gone or this rank's server shuts down.
  using PipeHandler = std::function<void(RankPipe&)>;
  virtual void RegisterPipe(const std::string& name, PipeHandler handler) = 0;

  // The gRPC service that the leader's calls arrive at; to be added to this rank's server.
  virtual grpc::Service* service() = 0;

  // Exchanges endpoints through context.store and connects. After the server listens.
  virtual absl::Status Start(absl::Duration timeout) = 0;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  bool is_leader() const { return rank() == 0; }
  // host:port of every rank; after Start.
  virtual const std::vector<std::string>& endpoints() const = 0;

  // Leader only. inputs.size() == world_size(). The outputs in rank order, or the first error, prefixed with the rank
  // it came from.
  //
  // Handlers that have not begun by `deadline` never do: DEADLINE_EXCEEDED. Those that use collectives begin on all
  // ranks or on none. What has begun is waited for, so that nothing of the call has an effect after it has returned;
  // but where the handlers of several ranks need each other, and so may wait for ever, the call ends when its deadline
  // and, since they began, context.collective_timeout have passed, names the ranks that are late, and breaks the group.
  // It also ends by EndCalls, when the service ends.
  virtual absl::StatusOr<std::vector<RankOutput>> Run(const std::string& method, std::vector<RankInput> inputs,
                                                      const Deadline& deadline) = 0;

  // Leader only, after Start; `rank` is another one. Read and Write fail after Stop.
  virtual absl::StatusOr<std::shared_ptr<RankPipe>> OpenPipe(int rank, const std::string& name) = 0;

  // Calls, now and later, end with `status` at once, the leader's as its followers', whatever their handlers do.
  virtual void EndCalls(const absl::Status& status) = 0;

  // What this rank has found makes the process group unusable: `on_broken` is called.
  virtual void Break(const absl::Status& status) = 0;

  // Runs `work` on this rank's executor thread and waits for it. Not to be used for collectives.
  virtual absl::Status RunHere(const std::function<absl::Status()>& work) = 0;

  // No further call is accepted; waits for the running one. Idempotent.
  virtual void Stop() = 0;
};

// Typed front of a handler: Header and Item are parsed, Summary and OutItem serialised.
template <typename Header, typename Item, typename Summary, typename OutItem>
void RegisterTyped(
    RankGroup& group, const std::string& method, RankGroup::Kind kind,
    std::function<absl::Status(const Header&, const std::vector<Item>&, Summary*, std::vector<OutItem>*)> handler) {
  group.Register(method, kind,
                 [handler = std::move(handler), method](const RankInput& in) -> absl::StatusOr<RankOutput> {
                   Header header;
                   if (!header.ParseFromString(in.header)) return absl::InternalError("unreadable header of " + method);
                   std::vector<Item> parsed(in.items.size());
                   for (size_t i = 0; i < parsed.size(); ++i) {
                     if (!parsed[i].ParseFromString(in.items[i]))
                       return absl::InternalError("unreadable item of " + method);
                   }
                   const auto* own = std::any_cast<std::vector<Item>>(&in.own_items);
                   if (own == nullptr && in.own_items.has_value())
                     return absl::InternalError("items of another type for " + method);
                   Summary summary;
                   std::vector<OutItem> out;
                   if (absl::Status s = handler(header, own != nullptr ? *own : parsed, &summary, &out); !s.ok())
                     return s;
                   RankOutput output;
                   output.summary = summary.SerializeAsString();
                   for (const OutItem& o : out) output.items.push_back(o.SerializeAsString());
                   return output;
                 });
}

// The same of a handler without items.
template <typename Header, typename Summary>
void RegisterTyped(RankGroup& group, const std::string& method, RankGroup::Kind kind,
                   std::function<absl::Status(const Header&, Summary*)> handler) {
  RegisterTyped<Header, Header, Summary, Summary>(
      group, method, kind, [handler = std::move(handler)](const Header& header, const auto&, Summary* summary, auto*) {
        return handler(header, summary);
      });
}

// What such handlers answered.
template <typename Summary>
absl::StatusOr<std::vector<Summary>> ParseSummaries(const std::vector<RankOutput>& outputs) {
  std::vector<Summary> summaries(outputs.size());
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    if (!summaries[rank].ParseFromString(outputs[rank].summary)) {
      return absl::InternalError("unreadable summary of rank " + std::to_string(rank));
    }
  }
  return summaries;
}

// Leader only: as RankGroup::Run, with the same header for every rank and no items.
template <typename Summary>
absl::StatusOr<std::vector<Summary>> RunOnAll(RankGroup& group, const std::string& method,
                                              const google::protobuf::MessageLite& header, const Deadline& deadline) {
  const RankInput input = {.header = header.SerializeAsString(), .items = {}};
  const absl::StatusOr<std::vector<RankOutput>> outputs =
      group.Run(method, std::vector<RankInput>(group.world_size(), input), deadline);
  if (!outputs.ok()) return outputs.status();
  return ParseSummaries<Summary>(*outputs);
}

}  // namespace quartet
