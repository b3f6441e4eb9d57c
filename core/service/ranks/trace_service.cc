#include "core/service/ranks/trace_service.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/base/trace.h"
#include "core/service/rpc/call_deadline.h"
#include "core/service/rpc/status_conversion.h"

namespace quartet {
namespace {

constexpr char kStart[] = "start_trace";
constexpr char kTake[] = "take_trace";
constexpr size_t kChunkBytes = size_t{1} << 20;

// `events` in chunks of whole lines.
std::vector<std::string> InChunks(const std::string& events) {
  std::vector<std::string> chunks;
  for (size_t begin = 0; begin < events.size();) {
    const size_t end = std::min(begin + kChunkBytes, events.size());
    const size_t size = events.rfind('\n', end - 1) + 1 - begin;
    chunks.push_back(events.substr(begin, size));
    begin += size;
  }
  return chunks;
}

absl::StatusOr<RankOutput> TakeOwn() {
  QUARTET_ASSIGN_OR_RETURN(const RecordedTrace trace, TakeTrace());
  RankOutput output;
  output.items = InChunks(trace.events);
  TraceChunk summary;
  summary.set_dropped(trace.dropped);
  output.summary = summary.SerializeAsString();
  return output;
}

}  // namespace

TraceService::TraceService(const RankContext& context, RankGroup& group) : group_(group) {
  group.Register(kStart, RankGroup::Kind::kConcurrent, [&context](const RankInput& in) -> absl::StatusOr<RankOutput> {
    StartTraceRequest request;
    if (!request.ParseFromString(in.header)) return absl::InternalError("not a StartTraceRequest");
    QUARTET_RETURN_IF_ERROR(StartTraceInMemory(context.service, context.rank, request.origin()));
    return RankOutput();
  });
  group.Register(kTake, RankGroup::Kind::kConcurrent, [](const RankInput&) { return TakeOwn(); });
}

grpc::Status TraceService::Start(grpc::ServerContext* context, const StartTraceRequest* request, StartTraceReply*) {
  return ToGrpc([&] {
    const std::vector<RankInput> inputs(group_.world_size(), {.header = request->SerializeAsString(), .items = {}});
    return group_.Run(kStart, inputs, DeadlineOf(*context)).status();
  });
}

grpc::Status TraceService::Take(grpc::ServerContext* context, const TakeTraceRequest*,
                                grpc::ServerWriter<TraceChunk>* writer) {
  return ToGrpc([&] { return DoTake(context, writer); });
}

grpc::Status TraceService::DoTake(grpc::ServerContext* context, grpc::ServerWriter<TraceChunk>* writer) {
  absl::StatusOr<std::vector<RankOutput>> outputs =
      group_.Run(kTake, std::vector<RankInput>(group_.world_size()), DeadlineOf(*context));
  if (!outputs.ok()) return ToGrpc(outputs.status());
  TraceChunk last;
  for (RankOutput& output : *outputs) {
    for (std::string& events : output.items) {
      TraceChunk chunk;
      chunk.set_events(std::move(events));
      if (!writer->Write(chunk)) return grpc::Status::CANCELLED;
    }
    TraceChunk summary;
    if (summary.ParseFromString(output.summary)) last.set_dropped(last.dropped() + summary.dropped());
  }
  writer->Write(last);
  return grpc::Status::OK;
}

}  // namespace quartet
