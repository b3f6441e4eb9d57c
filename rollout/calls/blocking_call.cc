#include "rollout/calls/blocking_call.h"

#include <utility>

#include "core/base/status_macros.h"

namespace quartet {

absl::StatusOr<std::unique_ptr<BlockingCall>> BlockingCall::Begin(Dispatcher& dispatcher, const GenerateHeader& header,
                                                                  std::vector<Prompt> prompts,
                                                                  std::function<absl::Status()> begin,
                                                                  std::stop_token gone, Dispatcher::Origin origin) {
  std::unique_ptr<BlockingCall> call(new BlockingCall(std::move(gone), header.stream_tokens()));
  QUARTET_ASSIGN_OR_RETURN(call->admission_,
                           dispatcher.Begin(header, std::move(prompts), std::move(begin), call.get(), origin));
  std::unique_lock lock(call->mutex_);
  QUARTET_RETURN_IF_ERROR(call->Wait(&lock, [&] { return call->begun_ || call->ended_; }));
  if (!call->begun_) return call->end_;
  lock.unlock();
  return call;
}

absl::StatusOr<std::deque<GenerateReply>> BlockingCall::Next() {
  if (streams_ && returned_ > 0) admission_->Fetched(returned_);
  std::unique_lock lock(mutex_);
  QUARTET_RETURN_IF_ERROR(Wait(&lock, [this] { return !replies_.empty() || ended_; }));
  std::deque<GenerateReply> replies = std::exchange(replies_, {});
  returned_ = replies.size();
  if (replies.empty()) QUARTET_RETURN_IF_ERROR(end_);
  return replies;
}

template <typename Condition>
absl::Status BlockingCall::Wait(std::unique_lock<std::mutex>* lock, Condition condition) {
  if (changed_.wait(*lock, gone_, condition)) return absl::OkStatus();
  return absl::CancelledError("the client has closed the call");
}

void BlockingCall::Begun() {
  const std::lock_guard lock(mutex_);
  begun_ = true;
  changed_.notify_one();
}

void BlockingCall::Reply(GenerateReply reply) {
  const std::lock_guard lock(mutex_);
  replies_.push_back(std::move(reply));
  changed_.notify_one();
}

void BlockingCall::End(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  end_ = status;
  if (!status.ok()) replies_.clear();  // there is no room for them any more, or no use
  changed_.notify_one();
}

}  // namespace quartet
