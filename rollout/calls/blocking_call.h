// A call for a thread that waits for its answers.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/rollout.pb.h"
#include "rollout/calls/dispatcher.h"

namespace quartet {

// A waiting thread wakes when its own call has news, or when `gone` is requested to stop: whoever asked has given up.
// One thread.
class BlockingCall final : private CallSink {
 public:
  // Dispatcher::Begin, and waits until the call has begun. CANCELLED where the caller has gone.
  static absl::StatusOr<std::unique_ptr<BlockingCall>> Begin(Dispatcher& dispatcher, const GenerateHeader& header,
                                                             std::vector<Prompt> prompts,
                                                             std::function<absl::Status()> begin, std::stop_token gone,
                                                             Dispatcher::Origin origin);

  // Waits for replies and returns all that are there; none once every sequence has come. An error ends the call. Of a
  // call that streams tokens those that were returned before are fetched then, as Dispatcher counts; of others all are
  // with the end of this.
  absl::StatusOr<std::deque<GenerateReply>> Next();

  // As Dispatcher::Admission::Hold.
  absl::Status Hold(int64_t bytes) { return admission_->Hold(bytes); }

 private:
  BlockingCall(std::stop_token gone, bool streams) : gone_(std::move(gone)), streams_(streams) {}
  void Begun() override;
  void Reply(GenerateReply reply) override;
  void End(const absl::Status& status) override;
  template <typename Condition>
  absl::Status Wait(std::unique_lock<std::mutex>* lock, Condition condition);

  const std::stop_token gone_;
  const bool streams_;
  size_t returned_ = 0;  // by the last Next
  std::mutex mutex_;
  std::condition_variable_any changed_;
  // Guarded by mutex_.
  bool begun_ = false;
  bool ended_ = false;
  absl::Status end_;
  std::deque<GenerateReply> replies_;

  std::unique_ptr<Dispatcher::Admission> admission_;  // ends first
};

}  // namespace quartet
