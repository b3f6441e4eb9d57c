#include "viewer/page/step_columns.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string_view>

#include "absl/strings/str_format.h"
#include "viewer/page/json_text.h"

namespace quartet {
namespace {

constexpr std::string_view kUnix = "time/unix";

// Whose least and greatest values within a bucket are drawn.
bool HasSpikes(std::string_view name) {
  constexpr std::string_view kNames[] = {"reward/mean",
                                         "kl/mean",
                                         "policy/entropy",
                                         "policy/clip_fraction",
                                         "rollout/log_prob_diff_mean",
                                         "rollout/log_prob_diff_max",
                                         "policy/grad_norm",
                                         "critic/grad_norm",
                                         "time/step",
                                         "response_length/mean",
                                         "critic/loss",
                                         "policy/loss",
                                         "sft/loss",
                                         "dpo/loss",
                                         "reward_model/loss"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// Of what happens in few steps the mean over all steps of a bucket says what it costs.
bool IsRare(std::string_view name) { return name == "time/evaluation" || name == "time/checkpoint"; }

// eval/<set>/pass@1 and the like: the page has them as evaluations.
bool IsOfASet(std::string_view name) {
  constexpr std::string_view kEval = "eval/";
  return name.starts_with(kEval) && name.find('/', kEval.size()) != std::string_view::npos;
}

}  // namespace

void StepColumns::Merge(const Bucket& from, Bucket* into) {
  into->last_step = from.last_step;
  into->steps += from.steps;
  into->seconds = from.seconds;
  if (into->cells.size() < from.cells.size()) into->cells.resize(from.cells.size());
  for (size_t i = 0; i < from.cells.size(); ++i) {
    const Cell& cell = from.cells[i];
    Cell& sum = into->cells[i];
    if (cell.count == 0) continue;
    sum.least = sum.count == 0 ? cell.least : std::min(sum.least, cell.least);
    sum.greatest = sum.count == 0 ? cell.greatest : std::max(sum.greatest, cell.greatest);
    sum.sum += cell.sum;
    sum.count += cell.count;
  }
}

void StepColumns::Add(int64_t step, const Metrics& metrics) {
  Bucket bucket;
  bucket.last_step = step;
  bucket.steps = 1;
  const double seconds = metrics.Get("time/step").value_or(0);
  elapsed_ += std::isfinite(seconds) ? seconds : 0;
  if (const std::optional<double> end = metrics.Get(kUnix); end.has_value() && std::isfinite(*end)) {
    if (steps_ == 0) started_ = *end - seconds;
    ended_ = *end;
  }
  bucket.seconds = started_ > 0 ? ended_ - started_ : elapsed_;
  for (const auto& [name, value] : metrics.values()) {
    if (name == kUnix || !std::isfinite(value)) continue;
    const auto [found, is_new] = index_.try_emplace(name, names_.size());
    if (is_new) {
      names_.push_back(name);
      stats_.push_back({.first = value, .least = value, .greatest = value});
    }
    Stats& stats = stats_[found->second];
    stats.latest = value;
    stats.least = std::min(stats.least, value);
    stats.greatest = std::max(stats.greatest, value);
    ++stats.count;
    if (bucket.cells.size() <= found->second) bucket.cells.resize(found->second + 1);
    const auto small = static_cast<float>(value);
    bucket.cells[found->second] = {.sum = value, .count = 1, .least = small, .greatest = small};
  }
  newest_.push_back(std::move(bucket));
  ++steps_;
  last_step_ = step;
  if (static_cast<int64_t>(newest_.size()) <= kNewest) return;
  if (old_.empty() || old_.back().steps == size_) {
    old_.push_back(std::move(newest_.front()));
  } else {
    Merge(newest_.front(), &old_.back());
  }
  newest_.pop_front();
  if (old_.size() <= kBuckets) return;
  std::vector<Bucket> merged;
  for (Bucket& one : old_) {
    if (merged.empty() || merged.back().steps == 2 * size_) {
      merged.push_back(std::move(one));
    } else {
      Merge(one, &merged.back());
    }
  }
  old_ = std::move(merged);
  size_ *= 2;
}

int64_t StepColumns::StepAt(double time) const {
  if (started_ <= 0 || time < started_) return -1;
  const auto ended_before = [&](const Bucket& bucket) { return started_ + bucket.seconds < time; };
  if (const auto old = std::partition_point(old_.begin(), old_.end(), ended_before); old != old_.end()) {
    return old->last_step;
  }
  const auto found = std::partition_point(newest_.begin(), newest_.end(), ended_before);
  return found == newest_.end() ? last_step_ : found->last_step;
}

void StepColumns::AppendJson(std::string* out) const {
  std::vector<const Bucket*> points;
  for (const Bucket& bucket : old_) points.push_back(&bucket);
  for (const Bucket& bucket : newest_) points.push_back(&bucket);
  const auto list = [&](std::string_view key, const std::function<void(const Bucket&, std::string*)>& value) {
    out->append("\"").append(key).append("\":");
    JsonList values("[", out);
    for (const Bucket* point : points) value(*point, values.Next());
  };
  list("x", [](const Bucket& b, std::string* to) { to->append(std::to_string(b.last_step)); });
  out->append(",");
  list("n", [](const Bucket& b, std::string* to) { to->append(std::to_string(b.steps)); });
  out->append(",");
  list("t", [](const Bucket& b, std::string* to) { absl::StrAppendFormat(to, "%.2f", b.seconds); });
  const auto columns = [&](std::string_view key, bool spikes_alone,
                           const std::function<double(const Bucket&, const Cell&)>& of) {
    out->append(",\"").append(key).append("\":");
    JsonList columns("{", out);
    for (size_t i = 0; i < names_.size(); ++i) {
      if (IsOfASet(names_[i]) || (spikes_alone && !HasSpikes(names_[i]))) continue;
      const Stats& stats = stats_[i];
      const bool rare = IsRare(names_[i]);
      if (!spikes_alone && stats.count == steps_ && stats.least == stats.greatest) {
        columns.Number(names_[i], stats.latest);
        continue;
      }
      JsonList values("[", columns.Next(names_[i]));
      for (const Bucket* point : points) {
        const Cell cell = i < point->cells.size() ? point->cells[i] : Cell();
        if (cell.count == 0 || (spikes_alone && point->steps == 1)) {
          values.Next()->append("null");
        } else {
          Cell shown = cell;
          if (rare) shown.count = static_cast<int32_t>(point->steps);
          AppendJsonNumber(of(*point, shown), values.Next());
        }
      }
    }
  };
  columns("cols", false, [](const Bucket&, const Cell& cell) { return cell.sum / cell.count; });
  // Without buckets each point is its own least and greatest.
  if (bucket_steps() > 1) {
    columns("lo", true, [](const Bucket&, const Cell& cell) { return cell.least; });
    columns("hi", true, [](const Bucket&, const Cell& cell) { return cell.greatest; });
  } else {
    out->append(",\"lo\":{},\"hi\":{}");
  }
  out->append(",\"stats\":");
  JsonList all("{", out);
  for (size_t i = 0; i < names_.size(); ++i) {
    JsonList values("[", all.Next(names_[i]));
    for (const double value : {stats_[i].first, stats_[i].latest, stats_[i].least, stats_[i].greatest}) {
      AppendJsonNumber(value, values.Next());
    }
  }
}

}  // namespace quartet
