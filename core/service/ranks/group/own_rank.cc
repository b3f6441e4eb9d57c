#include "core/service/ranks/group/own_rank.h"

#include <utility>

#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/errors/exceptions.h"

namespace quartet {

void OwnRank::Register(const std::string& name, RankGroup::Kind kind, RankGroup::Handler handler) {
  QUARTET_CHECK(methods_.emplace(name, RankMethod{kind, std::move(handler)}).second) << name << " is there already";
}

const RankMethod* OwnRank::Find(const std::string& name) const {
  const auto found = methods_.find(name);
  return found == methods_.end() ? nullptr : &found->second;
}

std::shared_ptr<HandlerRun> OwnRank::Start(const RankMethod& method, uint64_t number, RankInput input, bool asks,
                                           std::jthread* beside) {
  auto run = std::make_shared<HandlerRun>(method.handler, std::move(input), asks);
  std::function<void()> work = HandlerRun::WorkOf(run);
  if (method.kind != RankGroup::Kind::kConcurrent) {
    executor_.SubmitNumbered(number, std::move(work));
  } else if (!stopping_) {
    const absl::Status started = CatchAll([&] {
      *beside = std::jthread(work);
      return absl::OkStatus();
    });
    if (!started.ok()) run->Withdraw(started);
  }
  return run;
}

absl::Status OwnRank::RunHere(const std::function<absl::Status()>& work) {
  const RankGroup::Handler handler = [&work](const RankInput&) -> absl::StatusOr<RankOutput> {
    QUARTET_RETURN_IF_ERROR(work());
    return RankOutput();
  };
  const auto run = std::make_shared<HandlerRun>(handler, RankInput());
  if (executor_.IsOwnThread()) {
    HandlerRun::WorkOf(run)();
  } else {
    executor_.Submit(HandlerRun::WorkOf(run));
  }
  return run->Wait().status();
}

void OwnRank::EndCalls(const absl::Status& status) {
  const std::lock_guard lock(end_mutex_);
  end_.Update(status);
}

absl::Status OwnRank::end() const {
  const std::lock_guard lock(end_mutex_);
  return end_;
}

void OwnRank::Stop() {
  Refuse();
  executor_.Stop();
}

}  // namespace quartet
