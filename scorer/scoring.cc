#include "scorer/scoring.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/errors/shown.h"
#include "core/rewards/labels/labels.h"
#include "core/rl/options/token_arrays.h"
#include "core/rl/rewards.h"
#include "core/service/rpc/wire_text.h"

namespace quartet {

namespace {

// That a server of rewards is not there, or late, is not the scorer's own absence, or lateness.
absl::Status OfSource(const absl::Status& status) {
  if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
  return absl::InternalError(status.message());
}

}  // namespace

void Scoring::Add(ScoreItem* item) {
  auto answer = std::make_shared<Answer>();
  answer->tokens = CountActions(item->tokens());
  answer->truncated = item->truncated();
  answer->source = item->source();
  for (const auto& [to, from] : {std::pair{&answer->query, item->mutable_query()},
                                 {&answer->prompt, item->mutable_prompt()},
                                 {&answer->response, item->mutable_response()},
                                 {&answer->label, item->mutable_label()},
                                 {&answer->row, item->mutable_row()},
                                 {&answer->messages, item->mutable_messages()}}) {
    *to = std::move(*from);
    from->clear();
  }
  absl::Status wrong;
  if (of_tokens_) {
    const TokenSequence& tokens = item->tokens();
    for (int i = 0; i < tokens.ids_size(); ++i) {
      if (tokens.action_mask(i)) answer->token_ids.push_back(tokens.ids(i));
    }
    auto& texts = *item->mutable_token_texts();
    answer->token_texts.assign(std::make_move_iterator(texts.begin()), std::make_move_iterator(texts.end()));
    std::decay_t<decltype(texts)>().Swap(&texts);  // which gives their memory back, as clearing them would not
    if (answer->token_texts.size() != answer->token_ids.size()) {
      wrong = absl::InvalidArgumentError(absl::StrCat("sequence ", tokens.index(), ": token_texts has ",
                                                      answer->token_texts.size(), " texts for ",
                                                      answer->token_ids.size(), " action tokens"));
    }
  }
  size_t number;
  {
    const std::lock_guard lock(mutex_);
    number = items_.size();
    const auto missing = std::ranges::count_if(
        config_.source(), [&](const RewardSource& source) { return IsFor(source, answer->source); });
    items_.push_back({.index = item->tokens().index(),
                      .tokens = answer->tokens,
                      .parts = std::vector<std::optional<absl::StatusOr<Reward>>>(config_.source_size()),
                      .missing = static_cast<int>(missing)});
    if (!wrong.ok()) {
      Stop(std::move(wrong));
      return;
    }
    if (absl::Status status = CheckAnyIsFor(run_, answer->source); !status.ok()) {
      Stop(Prefixed(absl::StrCat("sequence ", item->tokens().index()), status));
      return;
    }
    FinishWhereComplete(items_.back());  // of one that no source is for
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
  if (config_.source(source).gate() && reward.ok()) {
    for (const float value : {reward->value, reward->score.value_or(reward->value)}) {
      if (value >= 0 && value <= 1) continue;
      reward =
          absl::FailedPreconditionError(absl::StrCat("its value is ", value, ", and a gate's must be from 0 to 1"));
      break;
    }
  }
  // Of weight 0, its value is in metrics alone, and missing there. DATA_LOSS is of rewards that others have got, too.
  const bool decides = config_.source(source).weight() != 0;
  const bool drops =
      config_.on_error() == "drop" && !absl::IsInvalidArgument(reward.status()) && !absl::IsDataLoss(reward.status());
  if (!reward.ok() && decides && !drops) {
    Stop(Prefixed(absl::StrCat("sequence ", item.index, ", reward \"", config_.source(source).name(), "\""),
                  OfSource(reward.status())));
  }
  item.parts[source] = std::move(reward);
  --item.missing;
  FinishWhereComplete(item);
}

void Scoring::FinishWhereComplete(const Item& item) {
  if (item.missing > 0 || !status_.ok()) return;
  absl::StatusOr<ScoreReply> reply = Reply(item);
  if (!reply.ok()) {
    Stop(reply.status());
    return;
  }
  ready_.push_back(*std::move(reply));
  changed_.notify_all();
}

absl::StatusOr<ScoreReply> Scoring::Reply(const Item& item) const {
  ScoreReply reply;
  reply.set_index(item.index);
  std::vector<double> rewards, scores;
  std::vector<double> of_tokens(of_tokens_ ? item.tokens : 0);
  double gates = 1, score_gates = 1;
  for (int source = 0; source < config_.source_size(); ++source) {
    const RewardSource& from = config_.source(source);
    if (!item.parts[source].has_value()) continue;  // for other prompts
    const absl::StatusOr<Reward>& part = *item.parts[source];
    if (!part.ok() && from.weight() == 0) continue;
    if (!part.ok()) {
      reply.Clear();
      reply.set_index(item.index);
      reply.set_error(WireText(absl::StrCat("reward \"", from.name(), "\": ", part.status().message())));
      return reply;
    }
    (*reply.mutable_parts())[from.name()] = part->value;
    if (part->score.has_value()) (*reply.mutable_scores())[from.name()] = *part->score;
    for (const auto& [name, value] : part->extra_logs) {
      (*reply.mutable_extra_logs())[absl::StrCat(from.name(), "/", name)] = value;
    }
    if (from.gate()) {
      gates *= part->value;
      score_gates *= part->score.value_or(part->value);
      continue;
    }
    rewards.push_back(from.weight() * part->value);
    scores.push_back(from.weight() * part->score.value_or(part->value));
    if (of_tokens.empty()) continue;
    if (part->token_rewards.empty()) of_tokens.back() += rewards.back();
    for (size_t t = 0; t < part->token_rewards.size(); ++t) of_tokens[t] += from.weight() * part->token_rewards[t];
  }
  for (const double reward : of_tokens) reply.add_token_rewards(static_cast<float>(reward * gates));
  reply.set_reward(static_cast<float>(AddRewards(rewards) * gates));
  reply.set_score(static_cast<float>(AddRewards(scores) * score_gates));
  if (!std::isfinite(reply.reward()) || !std::isfinite(reply.score()) ||
      !std::ranges::all_of(reply.token_rewards(), [](float reward) { return std::isfinite(reward); })) {
    return absl::OutOfRangeError(absl::StrCat("sequence ", item.index, ": the sum of its rewards is beyond fp32"));
  }
  return reply;
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
