#include "core/base/time/loading.h"

#include <gtest/gtest.h>

#include <string>

namespace quartet {
namespace {

TEST(Loading, IsToldToWhoeverWaits) {
  EXPECT_EQ(StillLoading("the scorer is still loading its models"),
            absl::UnavailableError("the scorer is still loading its models"));
  ReportLoading("reading weights", 3, 12);
  const absl::Status status = StillLoading("the scorer is still loading its models");
  EXPECT_EQ(status,
            absl::UnavailableError("the scorer is still loading its models; loading: reading weights, 3 of 12"));
  EXPECT_EQ(LoadingDetail(std::string(status.message())), "reading weights, 3 of 12");
}

TEST(Loading, IsFoundInALineOfTheLog) {
  EXPECT_EQ(LoadingDetail("I0519 12:00:00.0 7 loading.cc:42] [rollout/0] loading: recording CUDA graphs, 2 of 35"),
            "recording CUDA graphs, 2 of 35");
  EXPECT_EQ(LoadingDetail("I0519 12:00:00.0 7 rank_server.cc:42] [rollout/0] serving on 127.0.0.1:5"), "");
}

}  // namespace
}  // namespace quartet
