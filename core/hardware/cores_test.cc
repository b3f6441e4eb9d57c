#include "core/hardware/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace quartet {
namespace {

class Cores : public ::testing::Test {
 protected:
  void Write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = root_ + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  const std::string root_ =
      ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(Cores, AreThoseOfTheAffinity) {
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(AvailableCores(), 1);
  }).join();
  EXPECT_GE(AvailableCores(), 1);
}

TEST_F(Cores, AreNoMoreThanControlGroupsAllow) {
  Write("/a/b/cpu.max", "250000 100000\n");
  EXPECT_EQ(CoresOfControlGroups("0::/a/b\n", root_), 3);
  Write("/a/cpu.max", "100000 100000\n");
  EXPECT_EQ(CoresOfControlGroups("0::/a/b\n", root_), 1) << "of the group around it";
  Write("/a/cpu.max", "max 100000\n");
  EXPECT_EQ(CoresOfControlGroups("0::/a/b\n", root_), 3);
  EXPECT_EQ(CoresOfControlGroups("0::/elsewhere\n", root_), 0);
  // In a container, whose root is its group.
  Write("/cpu.max", "400000 100000\n");
  EXPECT_EQ(CoresOfControlGroups("0::/kubepods/pod1/c\n", root_), 4);
}

TEST_F(Cores, AreNoMoreThanControlGroupsOfTheFirstVersionAllow) {
  Write("/cpu/docker/c/cpu.cfs_quota_us", "150000\n");
  Write("/cpu/docker/c/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CoresOfControlGroups("12:memory:/docker/c\n4:cpu,cpuacct:/docker/c\n", root_), 2);
  Write("/cpu/docker/c/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(CoresOfControlGroups("4:cpu,cpuacct:/docker/c\n", root_), 0);
}

}  // namespace
}  // namespace quartet
