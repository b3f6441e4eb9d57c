// Tokens a second while forwards run, of late.
#pragma once

#include <cmath>
#include <cstdint>

namespace quartet {

// The past fades with a time constant of ten seconds of work. One thread.
class RateMeter {
 public:
  // The counters have these values after a step of `seconds`.
  void Add(double seconds, int64_t prefill, int64_t generated) {
    const double keep = std::exp(-seconds / 10);
    seconds_ = seconds_ * keep + seconds;
    prefill_ = prefill_ * keep + static_cast<double>(prefill - last_prefill_);
    generated_ = generated_ * keep + static_cast<double>(generated - last_generated_);
    last_prefill_ = prefill;
    last_generated_ = generated;
  }
  double prefill_rate() const { return seconds_ > 0 ? prefill_ / seconds_ : 0; }
  double generated_rate() const { return seconds_ > 0 ? generated_ / seconds_ : 0; }

 private:
  double seconds_ = 0;
  double prefill_ = 0;
  double generated_ = 0;
  int64_t last_prefill_ = 0;
  int64_t last_generated_ = 0;
};

}  // namespace quartet
