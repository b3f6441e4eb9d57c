#include "core/base/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "core/base/files/files.h"

namespace quartet {
namespace {

// The events of a trace, its closing bracket added.
nlohmann::json Events(const std::string& path) {
  auto text = ReadFile(path);
  EXPECT_TRUE(text.ok()) << text.status();
  const size_t comma = text->rfind(',');
  return nlohmann::json::parse(text->substr(0, comma) + "]");
}

std::string NewPath(const std::string& name) { return testing::TempDir() + "/" + name; }

TEST(Trace, ASpanHasItsServiceLaneTimesAndBytes) {
  const std::string path = NewPath("spans.json");
  ASSERT_TRUE(StartTrace(path, "scorer", 3).ok());
  { TraceScope span("forward block ", 7); }
  TraceSpent("all-gather", "all-gather of \"weights\"", 2'000'123, 5'000'456, 77);
  ASSERT_TRUE(StopTrace().ok());

  std::string service, compute_lane, comm_lane;
  nlohmann::json block, gather;
  const nlohmann::json events = Events(path);
  for (const auto& event : events) {
    if (event["name"] == "process_name") service = event["args"]["name"];
    if (event["name"] == "forward block 7") block = event;
    if (event["name"] == "all-gather of \"weights\"") gather = event;
  }
  for (const auto& event : events) {
    if (event["name"] != "thread_name") continue;
    if (event["tid"] == block["tid"]) compute_lane = event["args"]["name"];
    if (event["tid"] == gather["tid"]) comm_lane = event["args"]["name"];
  }
  EXPECT_EQ(service, "scorer");
  EXPECT_EQ(compute_lane, "rank 3");
  EXPECT_EQ(comm_lane, "rank 3 all-gather");
  EXPECT_EQ(block["pid"], gather["pid"]);
  EXPECT_GE(block["dur"].get<double>(), 0);
  EXPECT_DOUBLE_EQ(gather["ts"].get<double>(), 2000.123);
  EXPECT_DOUBLE_EQ(gather["dur"].get<double>(), 3000.333);
  EXPECT_EQ(gather["args"]["bytes"], 77);
}

TEST(Trace, RanksThatAreThreadsHaveLanesOfTheirOwn) {
  const std::string path = NewPath("ranks.json");
  ASSERT_TRUE(StartTrace(path, "test", 0).ok());
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([rank] {
      SetTraceRank(rank);
      for (int i = 0; i < 100; ++i) TraceScope span("step ", i);
    });
  }
  for (auto& rank : ranks) rank.join();
  ASSERT_TRUE(StopTrace().ok());
  std::map<int, int> spans;
  for (const auto& event : Events(path)) {
    if (event["ph"] == "X") ++spans[event["tid"].get<int>()];
  }
  EXPECT_EQ(spans.size(), 3);
  for (const auto& [lane, count] : spans) EXPECT_EQ(count, 100) << lane;
}

TEST(Trace, KeptInMemoryItsTimesCountFromItsOrigin) {
  EXPECT_EQ(TakeTrace().status().code(), absl::StatusCode::kFailedPrecondition);
  const int64_t origin = absl::GetCurrentTimeNanos();
  ASSERT_TRUE(StartTraceInMemory("orchestrator", -1, origin).ok());
  { TraceScope lost("of an earlier trace"); }
  ASSERT_TRUE(StartTraceInMemory("orchestrator", -1, origin).ok());
  const int64_t start = TraceNow();
  TraceSpent("calls", "Update", start, start + 5'000);
  { TraceScope step("step ", 4); }
  const auto trace = TakeTrace();
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->dropped, 0);
  EXPECT_FALSE(TraceEnabled());

  ASSERT_TRUE(trace->events.ends_with(",\n"));
  const nlohmann::json events = nlohmann::json::parse("[" + trace->events.substr(0, trace->events.size() - 2) + "]");
  ASSERT_EQ(events.size(), 5u) << trace->events;  // the process's name, a lane's and its span, another's
  EXPECT_EQ(events[1]["args"]["name"], "calls");
  EXPECT_EQ(events[2]["name"], "Update");
  EXPECT_DOUBLE_EQ(events[2]["dur"].get<double>(), 5);
  EXPECT_EQ(events[3]["args"]["name"], "main");
  EXPECT_EQ(events[4]["name"], "step 4");
  const double now = static_cast<double>(absl::GetCurrentTimeNanos() - origin) / 1e3;
  EXPECT_GE(events[2]["ts"].get<double>(), 0);
  EXPECT_LE(events[2]["ts"].get<double>(), now);
}

TEST(Trace, CountsWhatFindsNoPlaceInMemory) {
  constexpr int kMaxSpans = 10;
  const std::string name(size_t{10'000}, 'x');
  ASSERT_TRUE(StartTraceInMemory("scorer", 0, 0, kMaxSpans * 10'000).ok());
  for (int i = 0; i < kMaxSpans + 3; ++i) TraceSpent("", name, 1, 2);
  const auto trace = TakeTrace();
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->dropped, 3);
  EXPECT_LT(trace->events.size(), (kMaxSpans + 2) * name.size());
}

TEST(Trace, OneIsWrittenAtATime) {
  const std::string path = NewPath("one.json");
  ASSERT_TRUE(StartTrace(path, "test", 0).ok());
  const absl::Status status = StartTraceInMemory("test", 0, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(path));
  EXPECT_EQ(TakeTrace().status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(StopTrace().ok());
}

TEST(Trace, NothingIsRecordedWhileNoneIsWritten) {
  EXPECT_FALSE(TraceEnabled());
  EXPECT_EQ(TraceNow(), 0);
  const std::string path = NewPath("late.json");
  {
    TraceScope early("begun before the trace");
    ASSERT_TRUE(StartTrace(path, "test", 0).ok());
  }
  EXPECT_EQ(StartTrace(path, "test", 0).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(StopTrace().ok());
  { TraceScope late("begun after the trace"); }
  auto text = ReadFile(path);
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, testing::Not(testing::HasSubstr("begun")));
}

TEST(Trace, AFileThatCannotBeMadeIsNamed) {
  const absl::Status status = StartTrace("/no/such/folder/trace.json", "test", 0);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("/no/such/folder/trace.json"));
  EXPECT_FALSE(TraceEnabled());
}

TEST(Trace, WritersHaveFilesOfTheirOwn) {
  EXPECT_EQ(TraceFileOf("/tmp/run.json", "rank0"), "/tmp/run.rank0.json");
  EXPECT_EQ(TraceFileOf("trace", "scorer"), "trace.scorer");
  EXPECT_EQ(TraceFileOf("/runs/v1.2/trace", "rank3"), "/runs/v1.2/trace.rank3");
  EXPECT_EQ(TraceFileOf("/runs/.trace", "rank3"), "/runs/.trace.rank3");
}

}  // namespace
}  // namespace quartet
