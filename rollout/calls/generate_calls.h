// Rollout.Generate over gRPC, of which no thread waits: calls that read, wait or write are state, so that the threads
// of the server are there for control. LibTorch-free.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "core/service/rpc/batch_limits.h"
#include "proto/rollout.pb.h"
#include "rollout/calls/dispatcher.h"
#include "rollout/calls/rollout_backend.h"

namespace quartet {

class GenerateCall;

// Thread safe.
class GenerateCalls {
 public:
  using Reactor = grpc::ServerBidiReactor<GenerateRequest, GenerateReply>;

  // All outlive it. Above `max_calls` that read, wait or write the next is refused before it is read.
  GenerateCalls(RolloutBackend* backend, Dispatcher* dispatcher, BatchLimits* limits, int64_t max_calls);
  // After the server has no call left.
  ~GenerateCalls();

  // Of a call that comes in.
  Reactor* Begin(grpc::CallbackServerContext* context);

 private:
  friend class GenerateCall;
  void Wake(std::shared_ptr<GenerateCall> call);
  void WriteNews();

  RolloutBackend* const backend_;
  Dispatcher* const dispatcher_;
  BatchLimits* const limits_;
  const int64_t max_calls_;
  std::atomic<int64_t> calls_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<std::shared_ptr<GenerateCall>> with_news_;
  bool closed_ = false;
  std::thread writer_;  // begins writes that the dispatcher, which cannot wait, has the words for
};

}  // namespace quartet
