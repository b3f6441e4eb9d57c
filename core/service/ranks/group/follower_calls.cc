#include "core/service/ranks/group/follower_calls.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/comm/agreed_error.h"
#include "core/errors/exceptions.h"
#include "core/service/ranks/group/lane_parts.h"
#include "core/service/rpc/status_conversion.h"

namespace quartet {

void FollowerCalls::Take(LanePart work) {
  RankInput& part = arriving_[work.call()];
  for (std::string& item : *work.mutable_items()) part.items.push_back(std::move(item));
  if (!work.last()) return;
  part.header = std::move(*work.mutable_head());
  const auto input = std::make_shared<const RankInput>(std::move(part));
  const uint64_t call = work.call();
  arriving_.erase(call);
  std::unique_lock lock(mutex_);
  running_.insert(call);
  const absl::Status end = end_;
  lock.unlock();
  const RankMethod* found = own_.Find(work.method());
  if (!end.ok()) return Answer(call, end);
  if (found == nullptr) {
    return Answer(call, absl::UnimplementedError(absl::StrCat("no method '", work.method(), "' is registered")));
  }
  const absl::Status started = own_.Start(work.concurrent(), [this, call, found, input] {
    Answer(call, CatchAll([&] { return found->handler(*input); }));
  });
  if (!started.ok()) Answer(call, started);
}

// The first answer to a call counts.
void FollowerCalls::Answer(uint64_t call, absl::StatusOr<RankOutput> output) {
  std::unique_lock lock(mutex_);
  if (running_.erase(call) == 0) return;
  ++answering_;
  lock.unlock();
  if (output.ok()) {
    const absl::Status fits = CheckSizes("of the answer", output->summary, output->items);
    if (!fits.ok()) output = absl::InternalError(fits.message());
  }
  LanePart last;
  last.set_call(call);
  std::vector<std::string> items;
  if (output.ok()) {
    last.set_head(std::move(output->summary));
    items = std::move(output->items);
  } else {
    const grpc::Status error = ToGrpc(output.status());
    last.mutable_error()->set_code(error.error_code());
    last.mutable_error()->set_message(error.error_message());
    last.mutable_error()->set_agreed(IsAgreed(output.status()));
  }
  SendInParts(std::move(last), std::move(items), &RankMessage::mutable_answer, send_);
  lock.lock();
  --answering_;
  changed_.notify_all();
}

bool FollowerCalls::AwaitNone(const Deadline& until) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, until.time(), [this] { return running_.empty() && answering_ == 0; });
}

void FollowerCalls::End(const absl::Status& status) {
  std::unique_lock lock(mutex_);
  end_.Update(status);
  const std::set<uint64_t> running = running_;
  lock.unlock();
  for (const uint64_t call : running) Answer(call, status);
}

}  // namespace quartet
