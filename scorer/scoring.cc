#include "scorer/scoring.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/training/batch/batch_check.h"

namespace quartet {

void Scoring::Add(ScoreItem* item) {
  auto answer = std::make_shared<Answer>();
  answer->tokens = CountActions(item->tokens());
  answer->truncated = item->truncated();
  for (const auto& [to, from] : {std::pair{&answer->query, item->mutable_query()},
                                 {&answer->prompt, item->mutable_prompt()},
                                 {&answer->response, item->mutable_response()},
                                 {&answer->label, item->mutable_label()}}) {
    *to = std::move(*from);
    from->clear();
  }
  size_t number;
  {
    const std::lock_guard lock(mutex_);
    number = items_.size();
    items_.push_back({.missing = config_.source_size()});
    items_.back().reply.set_index(item->tokens().index());
  }
  sources_->Score(answer, stop_.get_token(), [self = shared_from_this(), number](int source, auto reward) {
    const std::lock_guard lock(self->mutex_);
    if (!self->closed_) self->Take(number, source, std::move(reward));
  });
}

void Scoring::AddModel(size_t item, int source, float value) {
  const std::lock_guard lock(mutex_);
  if (!closed_) Take(item, source, Reward{value});
}

void Scoring::Take(size_t number, int source, absl::StatusOr<Reward> reward) {
  Item& item = items_[number];
  ScoreReply& reply = item.reply;
  const RewardSource& from = config_.source(source);
  if (!reward.ok()) {
    const std::string place = absl::StrCat("sequence ", reply.index(), ", reward \"", from.name(), "\"");
    if (config_.on_error() != "drop" || absl::IsInvalidArgument(reward.status())) {
      Stop(Prefixed(place, reward.status()));
    } else if (!item.failed) {
      item.failed = true;
      const uint64_t index = reply.index();
      reply.Clear();
      reply.set_index(index);
      reply.set_error(absl::StrCat("reward \"", from.name(), "\": ", reward.status().message()));
    }
  } else if (!item.failed) {
    (*reply.mutable_parts())[from.name()] = reward->value;
    for (const auto& [name, value] : reward->extra_logs) {
      (*reply.mutable_extra_logs())[absl::StrCat(from.name(), "/", name)] = value;
    }
    reply.set_reward(reply.reward() + from.weight() * reward->value);
    reply.set_score(reply.score() + from.weight() * reward->score.value_or(reward->value));
    if (!std::isfinite(reply.reward()) || !std::isfinite(reply.score())) {
      Stop(absl::OutOfRangeError(absl::StrCat("sequence ", reply.index(), ": the sum of its rewards is beyond fp32")));
    }
  }
  if (--item.missing > 0 || !status_.ok()) return;
  ready_.push_back(std::move(reply));
  changed_.notify_all();
}

void Scoring::EndItems() {
  const std::lock_guard lock(mutex_);
  all_added_ = true;
  changed_.notify_all();
}

void Scoring::Stop(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
  changed_.notify_all();
}

absl::Status Scoring::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

std::optional<ScoreReply> Scoring::Next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return Over() || !ready_.empty(); });
  if (Over()) return std::nullopt;
  ScoreReply reply = std::move(ready_.front());
  ready_.pop_front();
  ++given_;
  changed_.notify_all();
  return reply;
}

bool Scoring::WaitForLast(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout), [&] { return Over(); });
}

void Scoring::Close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  stop_.request_stop();
}

}  // namespace quartet
