// A line of the log for what others can bring about as often as they like, so that they cannot fill a disk with it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quartet {

// The first at once, then one a minute with their number. One thread.
class RepeatedLine {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::minutes kPause{1};

  // What is to be logged where it happens at `now`, which `line` says: now, or nothing.
  std::optional<std::string> Happened(std::string line, Time now) {
    last_ = std::move(line);
    if (next_.has_value()) {
      ++count_;
      return Due(now);
    }
    next_ = now + kPause;
    return last_;
  }

  // The same while nothing happens: to be asked once a minute as long as `waits`.
  std::optional<std::string> Due(Time now) {
    if (!next_.has_value() || now < *next_) return std::nullopt;
    next_ = now + kPause;
    if (count_ == 0) {
      next_.reset();
      return std::nullopt;
    }
    std::string line = absl::StrCat(last_, " (the last of ", count_, " like it since the line before)");
    count_ = 0;
    return line;
  }
  bool waits() const { return next_.has_value(); }

 private:
  std::string last_;
  int64_t count_ = 0;         // that no line has told
  std::optional<Time> next_;  // when a line may come; not set: at once
};

}  // namespace quartet
