#include "core/network/local_users.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace quartet {
namespace {

constexpr uid_t kOther = 65534;

// A socket that listens on a free port of loopback.
struct Listener {
  Listener() : fd(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd, 8), 0);
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
    place = {.host = "127.0.0.1", .port = ntohs(address.sin_port)};
  }
  ~Listener() { close(fd); }
  int fd;
  HostPort place;
};

int ConnectTo(const HostPort& place) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(place.port));
  return connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ? fd : -1;
}

TEST(LocalUsers, KnowsItsOwnSocketsAndTrustsThem) {
  const Listener listener;
  EXPECT_EQ(UserOfListener(listener.place).value(), geteuid());
  EXPECT_EQ(UserOfListener({.host = "localhost", .port = listener.place.port}).value(), geteuid());
  const int client = ConnectTo(listener.place);
  const int accepted = accept(listener.fd, nullptr, nullptr);
  EXPECT_EQ(UserOfPeer(accepted).value(), geteuid());
  EXPECT_TRUE(IsTrusted(geteuid()));
  EXPECT_TRUE(IsTrusted(0));
  EXPECT_FALSE(IsTrusted(kOther));
  close(client);
  close(accepted);
}

TEST(LocalUsers, TakesNobodyForTheUserOfASocketThatIsClosed) {
  HostPort place;
  {
    const Listener listener;
    place = listener.place;
    const int client = ConnectTo(listener.place);
    const int accepted = accept(listener.fd, nullptr, nullptr);
    close(client);  // the kernel goes on to know it for a while, as root's
    EXPECT_EQ(UserOfPeer(accepted).status().code(), absl::StatusCode::kNotFound);
    close(accepted);
  }
  EXPECT_EQ(UserOfListener(place).status().code(), absl::StatusCode::kNotFound);
}

TEST(LocalUsers, KnowsSocketsOfOthers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const Listener listener;
  const pid_t child = fork();
  if (child == 0) {
    if (setresuid(kOther, kOther, kOther) != 0) _exit(1);
    const int fd = ConnectTo(listener.place);
    char byte;
    _exit(fd >= 0 && read(fd, &byte, 1) == 0 ? 0 : 1);  // until the test closes it
  }
  const int accepted = accept(listener.fd, nullptr, nullptr);
  EXPECT_EQ(UserOfPeer(accepted).value(), kOther);
  EXPECT_EQ(NameOfUser(kOther), absl::StrCat("nobody (", kOther, ")"));
  EXPECT_EQ(NameOfUser(12345678), "user (12345678)");
  close(accepted);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace quartet
