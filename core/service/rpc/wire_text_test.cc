#include "core/service/rpc/wire_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "core/base/utf8.h"
#include "core/service/rpc/status_conversion.h"

namespace quartet {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

TEST(WireText, LeavesWhatFits) {
  EXPECT_EQ(WireText("rank 1: no room for 3 \xE2\x82\xAC\nsecond line"),
            "rank 1: no room for 3 \xE2\x82\xAC\nsecond line");
  EXPECT_EQ(WireText(""), "");
}

TEST(WireText, IsWithoutTheStackTraceOfLibTorch) {
  EXPECT_EQ(WireText("mat1 and mat2 shapes cannot be multiplied\nException raised from addmm at /pytorch/x.cpp:7 (most "
                     "recent call first):\nframe #0: c10::Error::Error + 0x88"),
            "mat1 and mat2 shapes cannot be multiplied");
  EXPECT_EQ(WireText("a\nException raised from the user"), "a\nException raised from the user");
}

TEST(WireText, IsCutBetweenCharacters) {
  for (const char* character : {"x", "%", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    std::string text = "error: ";
    while (text.size() < 20'000) text += character;
    const std::string cut = WireText(text);
    EXPECT_TRUE(IsValidUtf8(cut)) << character;
    EXPECT_LT(cut.size(), 7'000u);
    EXPECT_THAT(cut, StartsWith("error: "));
    EXPECT_THAT(cut, EndsWith("(the log of the rank has the rest)"));
  }
}

TEST(WireText, IsUtf8) {
  EXPECT_EQ(WireText("/data/\xFFname"), "/data/\xEF\xBF\xBDname");
  EXPECT_EQ(ToGrpc(absl::NotFoundError("/data/\xC3")).error_message(), "/data/\xEF\xBF\xBD");
}

TEST(FromGrpc, SaysWhatNoAnswerToKeepaliveMeans) {
  EXPECT_EQ(FromGrpc(grpc::Status(grpc::StatusCode::UNAVAILABLE, "keepalive watchdog timeout")),
            absl::UnavailableError("has not answered for 30 s: it is stopped, or its host is gone"));
  EXPECT_EQ(FromGrpc(grpc::Status(grpc::StatusCode::UNAVAILABLE, "Socket closed")),
            absl::UnavailableError("Socket closed"));
}

TEST(ToGrpc, TellsWhatTheBodyOfAHandlerThrows) {
  const grpc::Status no_memory = ToGrpc([]() -> absl::Status { throw std::bad_alloc(); });
  EXPECT_EQ(no_memory.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(no_memory.error_message(), StartsWith("out of memory: "));
  const grpc::Status odd = ToGrpc([]() -> grpc::Status { throw std::runtime_error("odd"); });
  EXPECT_EQ(odd.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(odd.error_message(), "odd");
  EXPECT_TRUE(ToGrpc([] { return absl::OkStatus(); }).ok());
  EXPECT_EQ(ToGrpc([] { return absl::NotFoundError("x"); }).error_code(), grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace quartet
