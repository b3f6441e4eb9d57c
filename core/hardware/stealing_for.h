// A loop over tasks of unequal or unforeseeable length, on LibTorch's threads. For targets with copts = ["-fopenmp"].
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "core/base/division.h"
#include "core/hardware/parallel.h"

namespace quartet {

// Tasks [begin, end) that one thread has been given and has not begun. Any thread.
class TaskRange {
 public:
  void Set(uint32_t begin, uint32_t end) { bounds_.store(Join(begin, end), std::memory_order_relaxed); }
  uint32_t left() const {
    const uint64_t bounds = bounds_.load(std::memory_order_relaxed);
    return End(bounds) - Begin(bounds);
  }
  // -1: none is left.
  int64_t TakeFirst() {
    return Take([](uint32_t begin, uint32_t end) { return Taken{Join(begin + 1, end), begin}; });
  }
  int64_t TakeLast() {
    return Take([](uint32_t begin, uint32_t end) { return Taken{Join(begin, end - 1), end - 1}; });
  }

 private:
  struct Taken {
    uint64_t bounds;
    uint32_t task;
  };
  static uint64_t Join(uint32_t begin, uint32_t end) { return uint64_t{begin} << 32 | end; }
  static uint32_t Begin(uint64_t bounds) { return static_cast<uint32_t>(bounds >> 32); }
  static uint32_t End(uint64_t bounds) { return static_cast<uint32_t>(bounds); }

  // What tasks write is handed over at the end of the loop, not here.
  template <typename Rule>
  int64_t Take(const Rule& rule) {
    uint64_t bounds = bounds_.load(std::memory_order_relaxed);
    while (Begin(bounds) < End(bounds)) {
      const Taken taken = rule(Begin(bounds), End(bounds));
      if (bounds_.compare_exchange_weak(bounds, taken.bounds, std::memory_order_relaxed)) return taken.task;
    }
    return -1;
  }

  alignas(64) std::atomic<uint64_t> bounds_{0};  // a line of the processor's caches for each thread's
};

// run(task) for each task of [0, count), once. As at::parallel_for, each of at most count / grain threads is given
// neighbours, which it runs in ascending order; one that has run its own takes others' last ones. So nobody waits for
// longer than a task takes, and next to nothing is paid for that.
template <typename Run>
void StealingFor(int64_t count, int64_t grain, const Run& run) {
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), CeilDivide(count, std::max<int64_t>(grain, 1)));
  if (threads <= 1 || at::in_parallel_region()) {
    for (int64_t task = 0; task < count; ++task) run(task);
    return;
  }
  const auto ranges = std::make_unique<TaskRange[]>(threads);
  for (int64_t t = 0; t < threads; ++t) {
    ranges[t].Set(static_cast<uint32_t>(count * t / threads), static_cast<uint32_t>(count * (t + 1) / threads));
  }
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t task = ranges[t].TakeFirst(); task >= 0; task = ranges[t].TakeFirst()) run(task);
      for (;;) {
        TaskRange* const most = std::max_element(ranges.get(), ranges.get() + threads,
                                                 [](const auto& a, const auto& b) { return a.left() < b.left(); });
        if (most->left() == 0) break;
        if (const int64_t task = most->TakeLast(); task >= 0) run(task);
      }
    }
  });
}

}  // namespace quartet
