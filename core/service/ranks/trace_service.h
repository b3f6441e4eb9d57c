// The service Trace (proto/trace.proto) of a group of ranks.
#pragma once

#include <grpcpp/server_context.h>

#include "core/rank/rank_context.h"
#include "core/service/ranks/group/rank_group.h"
#include "proto/trace.grpc.pb.h"

namespace quartet {

class TraceService final : public Trace::Service {
 public:
  // Registers what every rank does for it. Both outlive this. Ranks that are parts of one process record once, as the
  // last of them to begin.
  TraceService(const RankContext& context, RankGroup& group);

  grpc::Status Start(grpc::ServerContext* context, const StartTraceRequest* request, StartTraceReply* reply) override;
  grpc::Status Take(grpc::ServerContext* context, const TakeTraceRequest* request,
                    grpc::ServerWriter<TraceChunk>* writer) override;

 private:
  grpc::Status DoTake(grpc::ServerContext* context, grpc::ServerWriter<TraceChunk>* writer);

  RankGroup& group_;
};

}  // namespace quartet
