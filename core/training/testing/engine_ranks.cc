#include "core/training/testing/engine_ranks.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "core/comm/store/local_store.h"
#include "core/config/run_config.h"

namespace quartet {

void RunEngineRanks(int size, const std::function<void(const RankContext&)>& body) {
  const std::unique_ptr<KeyValueStore> store = MakeLocalStore();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      RankContext context;
      context.service = "test";
      context.rank = context.local_rank = rank;
      context.world_size = context.local_world_size = size;
      context.host = "127.0.0.1";
      context.endpoint = "127.0.0.1:" + std::to_string(1000 + rank);
      context.device = "cpu";
      context.collective_timeout = absl::Seconds(60);
      context.store = store.get();
      try {
        body(context);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

RunConfig TestConfig(const std::string& folder, int zero_stage) {
  RunConfig config;
  config.set_run_dir(NewTestFolder("run"));
  for (TrainerConfig* trainer : {config.mutable_actor(), config.mutable_critic()}) {
    trainer->set_pretrain(folder);
    trainer->set_dtype("fp32");
    trainer->set_zero_stage(zero_stage);
  }
  const absl::Status status = ResolveRunConfig(&config, std::filesystem::current_path().string());
  EXPECT_TRUE(status.ok()) << status;
  return config;
}

std::string NewTestFolder(const std::string& name) {
  static int count = 0;
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string unique = std::string(test->test_suite_name()) + "_" + test->name() + "_" + std::to_string(count++);
  for (char& c : unique) {
    if (c == '/') c = '_';
  }
  std::string folder = ::testing::TempDir() + "/" + unique + "/" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(std::filesystem::path(folder).parent_path());
  return folder;
}

}  // namespace quartet
