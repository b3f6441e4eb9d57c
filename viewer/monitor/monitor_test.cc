#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/testing/scratch_folder.h"
#include "core/http/testing/http_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "viewer/monitor/monitor_server.h"
#include "viewer/monitor/run_figures.h"

namespace quartet {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MonitorTest : public testing::Test {
 protected:
  void Append(const std::string& name, const std::string& text) const {
    std::ofstream(scratch_.path() + "/" + name, std::ios::app) << text;
  }
  static std::string TextOf(RunFigures& figures) {
    MetricFamilies families;
    EXPECT_TRUE(figures.Add(&families).ok());
    return MetricsText(families);
  }
  std::unique_ptr<MonitorServer> Start() const {
    RunConfig config;
    config.mutable_monitor()->set_listen("127.0.0.1:0");
    return MonitorServer::Start(config, scratch_.path()).value();
  }
  static int PortOf(const MonitorServer& server) {
    const std::string url = server.url();
    return std::stoi(url.substr(url.rfind(':') + 1));
  }

  const ScratchFolder scratch_;
};

TEST_F(MonitorTest, TheFiguresAreThoseOfTheRunFolder) {
  RunFigures figures(scratch_.path());
  EXPECT_EQ(TextOf(figures),
            "# HELP quartet_run_steps_total Steps that have been made.\n"
            "# TYPE quartet_run_steps_total counter\nquartet_run_steps_total 0\n");
  Append("metrics.jsonl",
         R"({"step":0,"reward/mean":0.25,"policy/kl":null,"time/generate":1.5,"time/step":2,"time/unix":1000})"
         "\n");
  Append("metrics.jsonl",
         R"({"step":1,"reward/mean":0.5,"policy/kl":0.01,"memory/rollout/host/kv_cache":7,"source/a/b/reward":0.75,)"
         R"("time/generate":3,"time/step":4,"time/unix":1004})"
         "\nhalf a li");
  Append("evaluations.jsonl", R"({"step":1,"set":"test","reward":0.5,"data":"x"})"
                              "\n");
  Append("events.jsonl", R"({"kind":"restart"})"
                         "\n"
                         R"({"kind":"warning"})"
                         "\n"
                         R"({"kind":"warning"})"
                         "\n");
  const std::string text = TextOf(figures);
  for (const char* line :
       {"quartet_run_steps_total 2\n", "quartet_run_events_total{kind=\"warning\"} 2\n",
        "quartet_run_events_total{kind=\"restart\"} 1\n", "quartet_run_step 2\n",
        "quartet_run_last_step_timestamp_seconds 1004\n", "quartet_run_step_duration_seconds_count 2\n",
        "quartet_run_step_duration_seconds_sum 6\n", "quartet_run_step_duration_seconds_bucket{le=\"2.5\"} 1\n",
        "quartet_run_phase_duration_seconds_sum{phase=\"generate\"} 4.5\n", "quartet_run_reward_mean 0.5\n",
        "quartet_run_policy_kl 0.01\n",
        "quartet_run_memory_peak_bytes{service=\"rollout\",category=\"host/kv_cache\"} 7\n",
        "quartet_run_source{source=\"a/b\",metric=\"reward\"} 0.75\n",
        "quartet_run_evaluation{set=\"test\",metric=\"reward\"} 0.5\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("quartet_run_time")));
  Append("metrics.jsonl",
         "ne\n"
         R"({"step":2,"reward/mean":1,"time/step":1,"time/unix":1005})"
         "\n");
  const std::string later = TextOf(figures);
  EXPECT_THAT(later, HasSubstr("quartet_run_steps_total 3\n"));
  EXPECT_THAT(later, HasSubstr("quartet_run_reward_mean 1\n"));
  EXPECT_THAT(later, Not(HasSubstr("quartet_run_policy_kl")));
}

// A run that goes on after step 1: what is of later steps is put aside, and its files are others then.
TEST_F(MonitorTest, TheFiguresForgetWhatARunThatGoesOnHasPutAside) {
  RunFigures figures(scratch_.path());
  const auto step = [](int step, double reward) {
    return absl::StrCat("{\"step\":", step, ",\"reward/mean\":", reward, ",\"time/step\":2}\n");
  };
  Append("metrics.jsonl", step(0, 0.5) + step(1, 0.75) + step(2, 0.875));
  Append("evaluations.jsonl", R"({"step":2,"set":"test","reward":0.5})"
                              "\n");
  EXPECT_THAT(TextOf(figures), HasSubstr("quartet_run_steps_total 3\n"));
  ASSERT_TRUE(AtomicWriteFile(scratch_.path() + "/metrics.jsonl", step(0, 0.5)).ok());
  ASSERT_TRUE(AtomicWriteFile(scratch_.path() + "/evaluations.jsonl", "").ok());
  // As long as before, so that its length alone tells nothing.
  Append("metrics.jsonl", step(1, 0.25) + step(2, 0.125));
  const std::string text = TextOf(figures);
  EXPECT_THAT(text, HasSubstr("quartet_run_steps_total 3\n"));
  EXPECT_THAT(text, HasSubstr("quartet_run_reward_mean 0.125\n"));
  EXPECT_THAT(text, HasSubstr("quartet_run_step_duration_seconds_count 3\n"));
  EXPECT_THAT(text, Not(HasSubstr("quartet_run_evaluation")));
}

TEST_F(MonitorTest, CountsTheWarningsAndErrorsOfLogs) {
  std::filesystem::create_directory(scratch_.path() + "/logs");
  Append("logs/scorer.log",
         "E20261122 10:11:12.123456  12 a.cc:3] [scorer/0] a worker died\n"
         "W20261122 10:11:13.123456  12 a.cc:4] [scorer/0] a reward server is slow\n");
  Append("events.jsonl", "{\"kind\":\"warning\"}\n");
  RunFigures figures(scratch_.path());
  const std::string text = TextOf(figures);
  EXPECT_THAT(text, HasSubstr("quartet_run_events_total{kind=\"error\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("quartet_run_events_total{kind=\"warning\"} 2\n"));
}

TEST_F(MonitorTest, ServesThePageAndTheFigures) {
  const auto server = Start();
  Append("run.textproto", "seed: 4711\n");
  Append("metrics.jsonl", R"({"step":0,"reward/mean":0.125,"time/step":2,"time/unix":1000})"
                          "\n");
  const int port = PortOf(*server);
  const HttpAnswer page = HttpAsk(port, "GET", "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_NE(page.body.find("0.125"), std::string::npos);
  EXPECT_NE(page.body.find("4711"), std::string::npos);
  EXPECT_THAT(HttpAsk(port, "GET", "/metrics").body, HasSubstr("quartet_run_reward_mean 0.125\n"));
  EXPECT_EQ(HttpAsk(port, "GET", "/run.textproto").status, 404);
  EXPECT_EQ(HttpAsk(port, "POST", "/metrics").status, 405);
  EXPECT_EQ(HttpAsk(port, "GET", "/", "", {{"Host", "evil.example"}}).status, 403);
}

TEST_F(MonitorTest, SaysWhyItCannotListen) {
  const auto server = Start();
  RunConfig config;
  config.mutable_monitor()->set_listen("127.0.0.1:" + std::to_string(PortOf(*server)));
  const absl::Status status = MonitorServer::Start(config, scratch_.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("monitor.listen"));
}

}  // namespace
}  // namespace quartet
