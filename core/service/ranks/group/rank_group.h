// The ranks of a service as one: how the leader makes each do its part of a call, and how they learn of each other's
// loading and ends. Knows no service and no LibTorch.
#pragma once

#include <any>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/time/deadline.h"
#include "core/rank/rank_context.h"
#include "google/protobuf/message_lite.h"

namespace grpc {
class Channel;
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

// The ranks of one service.
//
//   group       the ranks of one service. It fails as one: any of them that is gone, or cannot go on, ends all
//   leader      rank 0, which clients talk to; the others are followers
//   lane        the stream between the leader and one follower, on which they say all that they say to each other
//   call        what the leader makes every rank do: a method, and for each rank a part with a header and items
//   concurrent  of a call: it enters no collective and waits in no queue
//   event       a message of the service over the lane, outside of calls
//   executor    the one thread of a rank that enters LibTorch and collectives
//   heartbeat   how often a rank looks whether the others are there, and the unit of its patience
//   silent      of a rank: nothing has come over its lane for some heartbeats. After 25 it is given up
//   gone        of a rank: its lane has ended without a word, while this rank was running
//
// Every rank registers the same methods before Start. The leader then calls Run; the handler of `method` runs once on
// every rank, on that rank's executor. Calls wait on the leader and nowhere else: one is sent to all ranks once the one
// before it has ended on all of them, so they run in the same order everywhere.
//
// Thread safe after Start.
class RankGroup {
 public:
  using Handler = std::function<absl::StatusOr<RankOutput>(const RankInput&)>;

  // Whether a handler enters collectives. If one that does fails on any rank, the process group cannot be trusted any
  // more: `on_broken` is called (RankMain leaves the process then). The exception is a call that every rank refused
  // alike, which no rank can have done from inside a collective: the same code on all ranks, one of INVALID_ARGUMENT,
  // FAILED_PRECONDITION, NOT_FOUND, ALREADY_EXISTS, OUT_OF_RANGE, DATA_LOSS, UNIMPLEMENTED; and an error that all ranks
  // have agreed on (core/comm/agreed_error.h), whatever its code. A rank that is gone breaks the group, whatever the
  // kind.
  //
  // A concurrent handler runs beside the executor, on a thread of its call, in no order with other calls: for what must
  // not wait behind long computations. It must not enter LibTorch's operators or collectives.
  enum class Kind { kCollective, kIndependent, kConcurrent };

  // From any thread. Each may take its time, and may call Announce.
  struct Callbacks {
    // The ranks cannot work together any more, as this one has found or another says. At most once.
    std::function<void(const absl::Status&)> on_broken;
    // Another rank is gone without a word: whoever started it may know more. Not once this rank leaves.
    std::function<void(const absl::Status&)> on_lost;
    // Another rank was told to end, and why; likewise.
    std::function<void(const std::string& why)> on_leave;
  };
  // What comes over a lane beside calls, in order. It must not wait.
  struct Events {
    std::function<void(int rank, const std::string& event)> on_event;
    // The lane has ended, and nothing more comes. `fate`: "is gone", or what else has become of it.
    std::function<void(int rank, const std::string& fate)> on_end;
  };

  // `context`, whose `endpoint` is set, must outlive the group. A lane whose first message has not come after 10
  // heartbeats is ended.
  static std::unique_ptr<RankGroup> Create(const RankContext& context, Callbacks callbacks,
                                           absl::Duration heartbeat = absl::Seconds(1));
  virtual ~RankGroup() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  bool is_leader() const { return rank() == 0; }
  // host:port of every rank; after Start.
  virtual std::vector<std::string> endpoints() const = 0;

  // ---- For services, before Start.

  virtual void Register(const std::string& method, Kind kind, Handler handler) = 0;
  virtual void OnEvents(Events events) = 0;

  // ---- For services.

  // Leader only. inputs.size() == world_size(). The outputs in rank order, or the first error, prefixed with the rank
  // it came from.
  //
  // A call that has not begun by `deadline` never does, on any rank: DEADLINE_EXCEEDED, which names a rank that does
  // not answer at all. What has begun is waited for, so that nothing of the call has an effect after it has returned;
  // but where the handlers of several ranks need each other, and so may wait for ever, the call ends when its deadline
  // and, since it began, context.collective_timeout have passed, names the ranks that are late, and breaks the group.
  // It also ends by EndCalls, when the service ends.
  virtual absl::StatusOr<std::vector<RankOutput>> Run(const std::string& method, std::vector<RankInput> inputs,
                                                      const Deadline& deadline) = 0;

  // From the leader to another rank, or from that to rank 0: at most kMaxMessageBytes less 4 KiB. Lost where the lane
  // has ended. May wait until the other rank reads: on the leader not to be called from Events.
  virtual void SendEvent(int rank, std::string event) = 0;

  // What this rank has found makes the process group unusable: `on_broken` is called.
  virtual void Break(const absl::Status& status) = 0;

  // Runs `work` on this rank's executor and waits for it. Not to be used for collectives.
  virtual absl::Status RunHere(const std::function<absl::Status()>& work) = 0;

  // ---- For the rank's server.

  // Where the leader's lanes end; to be added to this rank's server.
  virtual grpc::Service* service() = 0;
  // Waits until all ranks have joined. After the server listens. `leader`: a follower's way to rank 0.
  virtual absl::Status Start(std::shared_ptr<grpc::Channel> leader, absl::Duration timeout) = 0;

  // How loading went on this rank. Once, after Start.
  virtual void ReportLoad(const absl::Status& status) = 0;
  // Until all ranks have reported that they have loaded. Else the first of their errors, the same on all ranks
  // (ABORTED); what has become of the ranks meanwhile; or CANCELLED once this rank leaves.
  virtual absl::Status WaitUntilAllLoaded() = 0;

  // The other ranks hear that this one is about to end, and why. The first call counts.
  virtual void Announce(const std::string& why, bool broken) = 0;
  // Whether a follower has no call to run by then. A leader's are those of its clients.
  virtual bool AwaitCalls(const Deadline& until) = 0;
  // Calls, now and later, end with `status` at once, the leader's as its followers', whatever their handlers do.
  virtual void EndCalls(const absl::Status& status) = 0;
  // Announce, and ends the lanes once what was said on them has been heard, or by then.
  virtual void CloseLanes(const Deadline& until) = 0;
  // CloseLanes at once, and waits for what handlers do. Idempotent; not from a callback.
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
