// How long it takes from a call of the leader to the begin of its handler on the last rank, and to its end; ranks are
// parts of this process: begin_benchmark [RANKS [CALLS]].
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/service/ranks/testing/rank_servers.h"

int main(int argc, char** argv) {
  using namespace quartet;
  using Clock = std::chrono::steady_clock;
  const int ranks = argc > 1 ? atoi(argv[1]) : 2, calls = argc > 2 ? atoi(argv[2]) : 1000;
  Group group(ranks);
  std::atomic<Clock::rep> begun = 0;  // of the last rank
  group.journal.on_write = [&](int) {
    const Clock::rep now = Clock::now().time_since_epoch().count();
    for (Clock::rep before = begun; before < now && !begun.compare_exchange_weak(before, now);) {
    }
  };
  std::vector<double> begins, ends;
  for (int i = 0; i < calls; ++i) {
    const Clock::time_point start = Clock::now();
    if (!group.Run("echo", "h").ok()) return 1;
    const std::chrono::nanoseconds begin(begun - start.time_since_epoch().count());
    begins.push_back(begin.count() * 1e-6);
    ends.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  for (auto* times : {&begins, &ends}) std::sort(times->begin(), times->end());
  printf("%d ranks: begin %.3f ms (median), %.3f ms (90 %%); end %.3f ms, %.3f ms\n", ranks, begins[calls / 2],
         begins[calls * 9 / 10], ends[calls / 2], ends[calls * 9 / 10]);
}
