#include "core/base/time/time_left.h"

#include "absl/strings/str_format.h"

namespace quartet {
namespace {

constexpr size_t kLatest = 10;
constexpr int64_t kAlikeParts = 10;
constexpr absl::Duration kUnknownRate = absl::Seconds(2);

}  // namespace

void TimeLeft::AddStep(absl::Duration step) {
  if (has_begun_) latest_.push_back(step);
  has_begun_ = true;
  if (latest_.size() > kLatest) latest_.pop_front();
}

std::optional<absl::Duration> TimeLeft::Of(int64_t steps) const {
  if (latest_.empty()) return std::nullopt;
  absl::Duration sum;
  for (const absl::Duration step : latest_) sum += step;
  return sum * steps / static_cast<int64_t>(latest_.size());
}

std::string TimeLeft::Text(const std::string& separator, int64_t steps) const {
  const std::optional<absl::Duration> left = Of(steps);
  return left.has_value() && steps > 0 ? separator + FormatTimeLeft(*left) : "";
}

std::string TimeLeftAtRate(int64_t done, int64_t total, absl::Duration spent) {
  if (total < kAlikeParts || done <= 0 || done >= total || spent < kUnknownRate) return "";
  return FormatTimeLeft(spent / static_cast<double>(done) * static_cast<double>(total - done));
}

std::string FormatTimeLeft(absl::Duration left) {
  const int64_t seconds = absl::ToInt64Seconds(left + absl::Milliseconds(500));
  const int64_t minutes = seconds / 60, hours = minutes / 60, days = hours / 24;
  if (days > 0) return absl::StrFormat("%d d %02d h left", days, hours % 24);
  if (hours > 0) return absl::StrFormat("%d h %02d m left", hours, minutes % 60);
  if (minutes > 0) return absl::StrFormat("%d m %02d s left", minutes, seconds % 60);
  return absl::StrFormat("%d s left", seconds);
}

}  // namespace quartet
