#include "core/service/ranks/addresses/nccl_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "core/base/files/files.h"
#include "core/base/testing/scratch_folder.h"
#include "core/service/ranks/addresses/host_address.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

// Documentation addresses (RFC 5737): no host has one.
constexpr char kNobodys[] = "203.0.113.7";

class NcclEnvironment : public testing::Test {
 protected:
  NcclEnvironment() { Unset(); }
  ~NcclEnvironment() override { Unset(); }

  static void Unset() {
    for (const char* name : {kNcclInterface, "NCCL_RAS_ENABLE", "NCCL_CONF_FILE"}) unsetenv(name);
  }
  static std::string Value(const char* name) {
    const char* value = getenv(name);
    return value == nullptr ? "not set" : value;
  }
};

TEST(InterfaceOf, IsLoopbackForItsAddressesAndNames) {
  EXPECT_EQ(InterfaceOf("127.0.0.1").value(), "lo");
  EXPECT_EQ(InterfaceOf("localhost").value(), "lo");
  EXPECT_EQ(InterfaceOf("127.0.1.1").value(), "lo") << "what Debian gives a host's name";
}

TEST(InterfaceOf, IsThatOfTheAddressOnOtherNetworks) {
  const absl::StatusOr<std::string> outward = LocalAddressTowards({.host = kNobodys, .port = 9});
  if (!outward.ok() || *outward == "127.0.0.1") GTEST_SKIP() << "this host has loopback alone";
  EXPECT_NE(InterfaceOf(*outward).value(), "lo");
}

TEST(InterfaceOf, OfAnAddressOfAnotherHostIsNone) {
  const absl::Status status = InterfaceOf(kNobodys).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no interface of this host has the address 203.0.113.7"));
}

TEST_F(NcclEnvironment, ListensWhereTheRankDoes) {
  ASSERT_TRUE(PutNcclBehind("127.0.0.1").ok());
  EXPECT_EQ(Value(kNcclInterface), "=lo");
  EXPECT_EQ(Value("NCCL_RAS_ENABLE"), "0");
}

TEST_F(NcclEnvironment, StaysAsTheUserHasSetIt) {
  setenv(kNcclInterface, "ib0", 1);
  setenv("NCCL_RAS_ENABLE", "1", 1);
  ASSERT_TRUE(PutNcclBehind(kNobodys).ok());
  EXPECT_EQ(Value(kNcclInterface), "ib0");
  EXPECT_EQ(Value("NCCL_RAS_ENABLE"), "1");
}

TEST_F(NcclEnvironment, StaysAsItStandsInFilesOfNccl) {
  const ScratchFolder root;
  ASSERT_TRUE(MakeDirs(root.path() + "/etc").ok());
  ASSERT_TRUE(AtomicWriteFile(root.path() + "/etc/nccl.conf", "NCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME==ens1f0\n").ok());
  ASSERT_TRUE(AtomicWriteFile(root.path() + "/own.conf", "NCCL_RAS_ENABLE=1\n").ok());
  setenv("NCCL_CONF_FILE", "/own.conf", 1);
  ASSERT_TRUE(PutNcclBehind(kNobodys, root.path()).ok());
  EXPECT_EQ(Value(kNcclInterface), "not set");
  EXPECT_EQ(Value("NCCL_RAS_ENABLE"), "not set");
}

TEST_F(NcclEnvironment, IsAnErrorWhereNoInterfaceHasTheAddress) {
  const absl::Status status = PutNcclBehind(kNobodys);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(kNobodys));
  EXPECT_EQ(Value(kNcclInterface), "not set");
}

TEST(NcclTakes, NamesAsNcclReadsThem) {
  EXPECT_TRUE(NcclTakes("", "eth0"));
  EXPECT_TRUE(NcclTakes("eth", "eth0"));
  EXPECT_TRUE(NcclTakes("ib,eth1", "eth1"));
  EXPECT_FALSE(NcclTakes("ib,eth1", "eth0"));
  EXPECT_TRUE(NcclTakes("=eth0", "eth0"));
  EXPECT_FALSE(NcclTakes("=eth", "eth0"));
  EXPECT_TRUE(NcclTakes("=ib0:1,eth0:2", "eth0"));
  EXPECT_FALSE(NcclTakes("^eth", "eth0"));
  EXPECT_TRUE(NcclTakes("^docker,lo", "eth0"));
  EXPECT_FALSE(NcclTakes("^=eth0", "eth0"));
  EXPECT_TRUE(NcclTakes("^=eth", "eth0"));
}

}  // namespace
}  // namespace quartet
