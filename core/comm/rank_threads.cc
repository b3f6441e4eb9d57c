#include "core/comm/rank_threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <exception>
#include <thread>
#include <vector>

namespace quartet {

void RunRanks(int size, const std::function<void(ProcessGroup&)>& body, absl::Duration timeout) {
  auto store = MakeLocalStore();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      ProcessGroupOptions options;
      options.rank = rank;
      options.size = size;
      options.timeout = timeout;
      auto group = MakeProcessGroup(store.get(), options);
      ASSERT_TRUE(group.ok()) << group.status();
      try {
        body(**group);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << " of " << size << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace quartet
