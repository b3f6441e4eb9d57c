#include "core/network/address.h"

#include <gtest/gtest.h>

namespace quartet {
namespace {

TEST(Address, ReadsHostAndPort) {
  EXPECT_EQ(ParseHostPort("localhost:0")->host, "localhost");
  EXPECT_EQ(ParseHostPort("10.0.0.1:65535")->port, 65535);
  EXPECT_EQ(ParseHostPort("[::1]:80")->host, "::1");
  EXPECT_EQ(ParseHostPort("[::1]:80")->ToString(), "[::1]:80");
  EXPECT_EQ(ParseHostPort("a.b:7")->ToString(), "a.b:7");
}

TEST(Address, RefusesWhatIsNoHostAndPort) {
  for (const char* bad : {"", "host", ":80", "host:", "host:x", "host:-1", "host:65536", "::1:80", "unix:/tmp/x"}) {
    absl::StatusOr<HostPort> parsed = ParseHostPort(bad);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(Address, ListensToOtherMachinesOnlyWithTls) {
  TlsConfig none;
  TlsConfig tls;
  tls.set_key_file("/key.pem");
  for (const char* inside : {"127.0.0.1:0", "127.1.2.3:5", "[::1]:0", "localhost:1"}) {
    EXPECT_TRUE(CheckListenAddress(inside, none).ok()) << inside;
  }
  for (const char* outside :
       {"0.0.0.0:1", "10.0.0.1:1", "[::]:1", "example.org:1", "128.0.0.1:1", "localhost.evil:1"}) {
    EXPECT_FALSE(CheckListenAddress(outside, none).ok()) << outside;
    EXPECT_TRUE(CheckListenAddress(outside, tls).ok()) << outside;
  }
}

}  // namespace
}  // namespace quartet
