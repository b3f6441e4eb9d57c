// How many calls run at the same time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stop_token>

namespace quartet {

// Thread safe.
class CallGate {
 public:
  explicit CallGate(int64_t places) : places_(places) {}

  // A place, for as long as it lives.
  class Place {
   public:
    // Waits for one; without it once `give_up` is requested to stop.
    Place(CallGate* gate, const std::stop_token& give_up) : gate_(*gate) {
      std::unique_lock lock(gate_.mutex_);
      has_place_ = gate_.freed_.wait(lock, give_up, [this] { return gate_.taken_ < gate_.places_; });
      if (has_place_) ++gate_.taken_;
    }
    ~Place() {
      if (!has_place_) return;
      const std::lock_guard lock(gate_.mutex_);
      --gate_.taken_;
      gate_.freed_.notify_all();  // one of which may be about to give up
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

   private:
    CallGate& gate_;
    bool has_place_ = false;
  };

 private:
  const int64_t places_;
  std::mutex mutex_;
  std::condition_variable_any freed_;
  int64_t taken_ = 0;  // guarded by mutex_
};

}  // namespace quartet
