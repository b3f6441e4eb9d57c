#include "core/http/http_access.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "core/http/testing/http_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;

class HttpAccessTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text, std::filesystem::perms perms) {
    const std::string path = testing::TempDir() + "/http_access_test_" + name;
    std::filesystem::remove(path);
    std::ofstream(path) << text;
    std::filesystem::permissions(path, perms);
    return path;
  }
  static HttpRequest With(const std::string& header, const std::string& value) {
    HttpRequest request;
    request.headers[header] = value;
    return request;
  }
  const std::filesystem::perms owner_ = std::filesystem::perms::owner_read;
};

TEST_F(HttpAccessTest, TakesTheKeyAsScrapersAndAsBrowsersBringIt) {
  const auto access = HttpAccess::Read(
      {.section = "monitor", .listen = "127.0.0.1:0", .api_key_file = Write("key", "a secret\n", owner_)});
  ASSERT_TRUE(access.ok()) << access.status();
  EXPECT_TRUE(access->Check(With("authorization", "Bearer a secret")).ok());
  EXPECT_TRUE(access->Check(With("authorization", "basic dXNlcjphIHNlY3JldA==")).ok());  // user:a secret
  for (const char* wrong : {"Bearer a secre", "Bearer ", "Basic dXNlcjphIHNlY3JlVA==", "Basic !", "Digest a secret"}) {
    const absl::Status status = access->Check(With("authorization", wrong));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is wrong"));
  }
  EXPECT_THAT(std::string(access->Check(HttpRequest()).message()), HasSubstr("is missing"));
}

TEST_F(HttpAccessTest, WithoutAKeyOnlyALoopbackNameIsAnswered) {
  const auto access = HttpAccess::Read({.section = "monitor", .listen = "127.0.0.1:0"});
  ASSERT_TRUE(access.ok()) << access.status();
  for (const char* host : {"localhost", "127.0.0.1:80", "[::1]:80"}) {
    EXPECT_TRUE(access->Check(With("host", host)).ok()) << host;
  }
  const absl::Status status = access->Check(With("host", "evil.example:80"));
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("monitor.api_key_file"));
}

TEST_F(HttpAccessTest, RefusesSecretsThatOthersRead) {
  const std::string open =
      Write("open", "secret", std::filesystem::perms::owner_all | std::filesystem::perms::others_read);
  const absl::Status read =
      HttpAccess::Read({.section = "monitor", .listen = "127.0.0.1:0", .api_key_file = open}).status();
  EXPECT_EQ(read.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(read.message()), HasSubstr("monitor.api_key_file"));
  const absl::Status empty =
      HttpAccess::Read({.section = "monitor", .listen = "127.0.0.1:0", .api_key_file = Write("empty", " \n", owner_)})
          .status();
  EXPECT_THAT(std::string(empty.message()), HasSubstr("is empty"));
}

class Answerer final : public HttpHandler {
 public:
  std::optional<HttpReply> Refuse(const HttpRequest& /*head*/) override { return std::nullopt; }
  bool IsControl(const HttpRequest& /*head*/) override { return false; }
  HttpReply Answer(HttpRequest& request, const std::stop_token& /*gone*/) override {
    HttpReply reply;
    reply.body = request.path;
    return reply;
  }
};

TEST_F(HttpAccessTest, SaysWhichFieldsAddressIsInUse) {
  Answerer answerer;
  const auto access = HttpAccess::Read({.section = "monitor", .listen = "127.0.0.1:0"});
  const auto first = access->Start({}, &answerer);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(HttpAsk((*first)->address().port, "GET", "/x").body, "/x");
  const auto again = HttpAccess::Read({.section = "monitor",
                                       .listen_field = "services.rollout.metrics_listen",
                                       .listen = (*first)->address().ToString()});
  const absl::Status status = again->Start({}, &answerer).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("services.rollout.metrics_listen is \"" + (*first)->address().ToString()));
}

}  // namespace
}  // namespace quartet
