#include "core/comm/testing/rank_threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/base/trace.h"
#include "core/hardware/device.h"

namespace quartet {

at::Device TestDevice() {
  const char* device = getenv("QUARTET_TEST_DEVICE");
  return device != nullptr && std::string(device) == "cuda" ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

void RunRanksOfStore(int size,
                     const std::function<void(KeyValueStore* store, const ProcessGroupOptions& options)>& body,
                     absl::Duration timeout) {
  auto store = MakeLocalStore();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      SetTraceRank(rank);
      ProcessGroupOptions options;
      options.rank = rank;
      options.size = size;
      options.timeout = timeout;
      if (const char* backend = getenv("QUARTET_TEST_BACKEND"); backend != nullptr) options.backend = backend;
      try {
        const absl::Status entered = EnterDevice(TestDevice());
        if (!entered.ok()) throw std::runtime_error(std::string(entered.message()));
        if (TestDevice().is_cuda()) options.device = "cuda";
        body(store.get(), options);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << " of " << size << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

void RunRanks(int size, const std::function<void(ProcessGroup&)>& body, absl::Duration timeout,
              const std::string& backend) {
  RunRanksOfStore(
      size,
      [&](KeyValueStore* store, ProcessGroupOptions options) {
        if (!backend.empty()) options.backend = backend;
        auto group = MakeProcessGroup(store, options);
        ASSERT_TRUE(group.ok()) << group.status();
        body(**group);
      },
      timeout);
}

}  // namespace quartet
