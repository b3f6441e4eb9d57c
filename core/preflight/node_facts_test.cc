#include "core/preflight/node_facts.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/version/version.h"

namespace quartet {
namespace {

TEST(ReadNodeFacts, ReadsWhatTheSystemTells) {
  const std::string scratch = testing::TempDir() + "/node_facts", root = scratch + "/root";
  std::filesystem::remove_all(scratch);
  std::filesystem::create_directories(root + "/proc/driver/nvidia");
  std::ofstream(root + "/proc/meminfo") << "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:   8192 kB\n";
  std::ofstream(root + "/proc/driver/nvidia/version")
      << "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12\n";
  const NodeFacts facts = ReadNodeFacts(scratch + "/not/there/yet", scratch + "/token", root);
  EXPECT_EQ(facts.memory_bytes(), 16384 << 10);
  EXPECT_EQ(facts.available_memory_bytes(), 8192 << 10);
  EXPECT_EQ(facts.gpu_driver(), "550.54.15");
  EXPECT_EQ(facts.shared_memory_free_bytes(), -1) << "there is no dev/shm";
  EXPECT_EQ(facts.version(), VersionText());
  EXPECT_GT(facts.disk_free_bytes(), 0) << "of the nearest folder that is there";
  EXPECT_FALSE(facts.sees_run_dir());
  EXPECT_FALSE(facts.host().empty());
  EXPECT_NE(facts.open_files(), 0);
  std::ofstream(scratch + "/token") << "";
  std::filesystem::create_directories(root + "/dev/shm");
  const NodeFacts seen = ReadNodeFacts(scratch, scratch + "/token", root);
  EXPECT_TRUE(seen.sees_run_dir());
  EXPECT_GT(seen.shared_memory_free_bytes(), 0);
}

}  // namespace
}  // namespace quartet
