// Bytes that many hold at the same time, bounded together.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace quartet {

// Thread safe.
class ByteBudget {
 public:
  explicit ByteBudget(int64_t limit) : limit_(limit) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  int64_t limit() const { return limit_; }
  int64_t held() const { return held_; }

  // What one holds; given back at its end, which is before the budget's. One thread at a time.
  class Share {
   public:
    Share() = default;
    explicit Share(ByteBudget* budget) : budget_(budget) {}
    Share(Share&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      Release();
      budget_ = std::exchange(other.budget_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
      return *this;
    }
    ~Share() { Release(); }

    int64_t bytes() const { return bytes_; }
    // False, and nothing changes, where all together would hold more than the limit.
    bool Grow(int64_t bytes) {
      if (budget_->held_.fetch_add(bytes) + bytes > budget_->limit_) {
        budget_->held_ -= bytes;
        return false;
      }
      bytes_ += bytes;
      return true;
    }
    void Release() {
      if (bytes_ > 0) budget_->held_ -= std::exchange(bytes_, 0);
    }

   private:
    ByteBudget* budget_ = nullptr;
    int64_t bytes_ = 0;
  };

 private:
  const int64_t limit_;
  std::atomic<int64_t> held_{0};
};

}  // namespace quartet
