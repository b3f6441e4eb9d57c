#include "core/hardware/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace quartet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

void Write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

TEST(Topology, IsWhatTheKernelSays) {
  // Core 0 is this test's own on any machine that runs it; the other one is on none.
  const HostTopology here = ReadTopology();
  ASSERT_FALSE(here.cores().empty());
  const int own = here.cores().front();
  const std::string root = testing::TempDir() + "/topology";
  std::filesystem::remove_all(root);
  Write(root + "/sys/devices/system/node/node0/cpulist", "1000000\n");
  Write(root + "/sys/devices/system/node/node1/cpulist", std::to_string(own) + "\n");
  Write(root + "/sys/devices/system/node/has_cpu", "0-1\n");
  for (const char* gpu : {"0000:07:00.0", "0000:0b:00.0"}) {
    std::filesystem::create_directories(root + "/proc/driver/nvidia/gpus/" + gpu);
  }
  Write(root + "/sys/bus/pci/devices/0000:07:00.0/numa_node", "1\n");
  const HostTopology topology = ReadTopology(root);
  EXPECT_THAT(topology.numa_cores, ElementsAre(IsEmpty(), ElementsAre(own)));
  EXPECT_THAT(topology.gpu_numa, ElementsAre(1, -1)) << "of the second nothing is known";
  EXPECT_THAT(topology.gpu_addresses, ElementsAre("0000:07:00.0", "0000:0b:00.0"));
}

TEST(Topology, OfAKernelWithoutNumaIsOneNode) {
  const HostTopology topology = ReadTopology(testing::TempDir() + "/no_such_root");
  ASSERT_EQ(topology.numa_cores.size(), 1u);
  EXPECT_EQ(topology.numa_cores[0], ReadTopology().cores());
  EXPECT_THAT(topology.gpu_numa, IsEmpty());
}

TEST(Topology, ThatIsDescribedHasEqualParts) {
  const HostTopology topology = EvenTopology(8, 2, 4);
  EXPECT_THAT(topology.numa_cores, ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(topology.gpu_numa, ElementsAre(0, 0, 1, 1));
}

TEST(Topology, PartsAreEvenAndAllWhereThereAreTooFew) {
  EXPECT_THAT(PartOf({0, 1, 2, 3, 4}, 0, 2), ElementsAre(0, 1));
  EXPECT_THAT(PartOf({0, 1, 2, 3, 4}, 1, 2), ElementsAre(2, 3, 4));
  EXPECT_THAT(PartOf({7, 9}, 2, 3), ElementsAre(7, 9));
}

TEST(Topology, CoresAreWrittenAsRanges) {
  EXPECT_EQ(FormatCores({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(FormatCores({}), "");
  EXPECT_THAT(ParseCores("0-3,8,10-11"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  for (const char* text : {"", "a", "3-1", "0-99999999", "1,,2"}) EXPECT_THAT(ParseCores(text), IsEmpty()) << text;
}

}  // namespace
}  // namespace quartet
