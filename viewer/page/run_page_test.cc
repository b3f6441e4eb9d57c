#include "viewer/page/run_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/files/files.h"
#include "core/base/testing/scratch_folder.h"
#include "nlohmann/json.hpp"
#include "viewer/page/compare_page.h"
#include "viewer/page/page_writer.h"

namespace quartet {
namespace {

using Json = nlohmann::json;

// A page is too long for an error's message.
bool Has(const std::string& html, const std::string& text) { return html.find(text) != std::string::npos; }

class RunPageTest : public ::testing::Test {
 protected:
  void Append(const std::string& name, const std::string& text) {
    std::ofstream(scratch_.path() + "/" + name, std::ios::app) << text;
  }

  // What is between the page's tags of data.
  static Json DataOf(const std::string& html) {
    const std::string begin = "<script type=\"application/json\" id=\"data\">";
    const size_t from = html.find(begin) + begin.size();
    const Json data = Json::parse(html.substr(from, html.find("</script>", from) - from), nullptr, false);
    EXPECT_TRUE(data.is_object());
    return data;
  }

  Json Data() {
    EXPECT_TRUE(page_.Read().ok());
    return DataOf(page_.Html());
  }

  ScratchFolder scratch_;
  RunPage page_{scratch_.path()};
};

TEST_F(RunPageTest, OfAnEmptyFolderHasNothing) {
  const Json data = Data();
  EXPECT_TRUE(data["x"].empty());
  EXPECT_EQ(data["run"]["status"], "");
  EXPECT_TRUE(page_.is_empty());
}

TEST_F(RunPageTest, GrowsWithTheFilesOfTheRun) {
  scratch_.Write("run.textproto", "rollout {\n  top_k: 5  # --set\n}\n");
  scratch_.Write("state.json", R"({"program":"orchestrator","state":"running","why":"","steps":9,"time":1000})");
  Append("metrics.jsonl", "{\"step\":0,\"reward/mean\":0.5,\"time/unix\":1000,\"time/step\":4}\n{\"step\":1,\"rew");
  Json data = Data();
  EXPECT_EQ(data["x"], Json({1})) << "steps done; half a line is none";
  EXPECT_EQ(data["config"][0], Json({"rollout.top_k", "5", "-1", "--set", 1}));
  EXPECT_EQ(data["run"]["max_steps"], 9);
  EXPECT_EQ(data["run"]["status"], "running");
  Append("metrics.jsonl", "ard/mean\":0.75,\"time/unix\":1010,\"time/checkpoint\":2}\nno record\n");
  Append("evaluations.jsonl", R"({"step":-1,"set":"held","prompts":9,"n_samples_per_prompt":1,"pass@1":0.25})"
                              "\n");
  Append("events.jsonl", R"({"time":1005,"step":1,"kind":"restart","from":"orchestrator","text":"goes on"})"
                         "\n");
  Append("samples.jsonl", R"({"step":1,"prompt":"p","response":"r","label":"l","reward":1})"
                          "\n");
  scratch_.Write("state.json", R"({"state":"failed","why":"the scorer ended","steps":9,"time":1011})");
  data = Data();
  EXPECT_EQ(data["x"], Json({1, 2}));
  EXPECT_EQ(data["cols"]["reward/mean"], Json({0.5, 0.75}));
  EXPECT_EQ(data["t"], Json({4.0, 14.0}));
  EXPECT_EQ(data["evals"]["held"]["v"], Json({0.25}));
  EXPECT_EQ(data["marks"].size(), 2);
  EXPECT_EQ(data["evals"]["held"]["s"], Json({0})) << "before the first step";
  EXPECT_EQ(data["samples"]["step"], Json({2}));
  EXPECT_EQ(data["marks"][0]["k"], "checkpoint");
  EXPECT_EQ(data["marks"][0]["s"], 2) << "as in step_2";
  EXPECT_EQ(data["marks"][1]["s"], 2) << "the first step that the run has made since";
  EXPECT_EQ(data["marks"][1]["text"], "goes on");
  EXPECT_EQ(data["samples"]["response"], Json({"r"}));
  EXPECT_EQ(data["run"]["why"], "the scorer ended");
}

TEST_F(RunPageTest, ShowsWarningsAndErrorsOfTheLogs) {
  ASSERT_TRUE(MakeDirs(scratch_.path() + "/logs").ok());
  Append("logs/scorer.log",
         "I20261122 10:11:12.123456  12 a.cc:3] [scorer/0] fine\n"
         "W20261122 10:11:13.123456  12 a.cc:4] [scorer/0] a reward server is slow\nWhat is no line of a log\n");
  const Json data = Data();
  ASSERT_EQ(data["marks"].size(), 1);
  EXPECT_EQ(data["marks"][0]["who"], "scorer");
  EXPECT_EQ(data["marks"][0]["text"], "[scorer/0] a reward server is slow");
  EXPECT_GT(data["marks"][0]["t"], 1.7e9);
}

TEST_F(RunPageTest, ShowsWhatALogTellsAtTheStepThatWasUnderWay) {
  ASSERT_TRUE(MakeDirs(scratch_.path() + "/logs").ok());
  const absl::Time began = absl::FromUnixSeconds(1'700'000'000);
  for (int step = 0; step < 5; ++step) {
    Append("metrics.jsonl",
           absl::StrCat("{\"step\":", step, ",\"time/step\":10,\"time/unix\":", 1'700'000'010 + 10 * step, "}\n"));
  }
  for (const int second : {-20, 5, 15, 35, 90}) {
    Append("logs/scorer.log", absl::FormatTime("W%E4Y%m%d %H:%M:%E6S  12 a.cc:4] slow\n", began + absl::Seconds(second),
                                               absl::LocalTimeZone()));
  }
  std::vector<Json> steps;
  const Json data = Data();
  for (const Json& mark : data["marks"]) steps.push_back(mark["s"]);
  EXPECT_THAT(steps, ::testing::ElementsAre(Json(nullptr), Json(1), Json(2), Json(4), Json(5)));
}

// A run that goes on after its first step.
TEST_F(RunPageTest, ForgetsWhatARunThatGoesOnHasPutAside) {
  const std::string first = "{\"step\":0,\"reward/mean\":0.5}\n";
  Append("metrics.jsonl", first + "{\"step\":1,\"reward/mean\":0.75,\"time/checkpoint\":1}\n{\"step\":2}\n");
  Append("samples.jsonl", "{\"step\":0,\"response\":\"a\"}\n{\"step\":2,\"response\":\"b\"}\n");
  Append("evaluations.jsonl", "{\"step\":2,\"set\":\"held\",\"reward\":0.5}\n");
  EXPECT_EQ(Data()["x"], Json({1, 2, 3}));
  ASSERT_TRUE(AtomicWriteFile(scratch_.path() + "/metrics.jsonl", first).ok());
  ASSERT_TRUE(AtomicWriteFile(scratch_.path() + "/samples.jsonl", "{\"step\":0,\"response\":\"a\"}\n").ok());
  ASSERT_TRUE(AtomicWriteFile(scratch_.path() + "/evaluations.jsonl", "").ok());
  Append("metrics.jsonl", "{\"step\":1,\"reward/mean\":0.25}\n");
  const Json data = Data();
  EXPECT_EQ(data["x"], Json({1, 2}));
  EXPECT_EQ(data["cols"]["reward/mean"], Json({0.5, 0.25}));
  EXPECT_EQ(data["samples"]["response"], Json({"a"}));
  EXPECT_TRUE(data["evals"].empty());
  EXPECT_TRUE(data["marks"].empty());
}

// Answers are hostile: none of their characters can end the script that holds them.
TEST_F(RunPageTest, HoldsHostileTextsAsData) {
  const std::string hostile = "</script><!--<script>alert(1)</script> {{DATA}} {{TITLE}} \xE2\x80\xA8 & \xff \x01";
  Append("samples.jsonl",
         Json({{"step", 0}, {"prompt", hostile.substr(0, 20)}, {"response", "</script>{{TITLE}}"}}).dump() + "\n");
  const Json data = Data();
  EXPECT_EQ(data["samples"]["response"][0], "</script>{{TITLE}}");
  const std::string html = page_.Html();
  EXPECT_FALSE(Has(html, "</script>{{TITLE}}"));
  EXPECT_FALSE(Has(html, "{{DATA}}"));
}

TEST_F(RunPageTest, OfARunWithAHostileNameHasItsDataInTheirPlace) {
  const std::string run_dir = scratch_.path() + "/{{DATA}} {{TITLE}}";
  ASSERT_TRUE(MakeDirs(run_dir).ok());
  const std::string html = RunPage(run_dir).Html();
  EXPECT_EQ(DataOf(html)["run"]["name"], "{{DATA}} {{TITLE}}");
  EXPECT_TRUE(Has(html, "<title>{{DATA}} {{TITLE}}</title>")) << html.substr(html.find("<title>"), 100);
}

TEST_F(RunPageTest, AllowsItsOwnScriptsAlone) {
  const std::string html = page_.Html();
  EXPECT_TRUE(Has(html, "default-src 'none'"));
  EXPECT_TRUE(Has(html, "script-src 'sha256-"));
  EXPECT_FALSE(Has(html, "<script src"));
  EXPECT_FALSE(Has(html, "'unsafe-eval'"));
  EXPECT_TRUE(Has(html, "dygraphs")) << "the library's licence";
}

TEST_F(RunPageTest, HasThePlanThatIsInTheFolder) {
  scratch_.Write("plan.json", R"({"fits":true,"services":{"rollout":{"device":{"parameters":5,"total":12345678},
                                 "device_outside":1,"host_outside":2,"ranks":2}}})");
  const Json plan = Data()["plan"];
  EXPECT_EQ(plan["rollout"]["device"]["total"], 12345678);
  EXPECT_EQ(plan["rollout"]["outside"], 3);
  scratch_.Write("plan.json", "no plan");
  EXPECT_TRUE(Data()["plan"].empty());
}

TEST_F(RunPageTest, IsComparedWithOthers) {
  const ScratchFolder other;
  scratch_.Write("run.textproto", "seed: 1\n");
  Append("metrics.jsonl", "{\"step\":0,\"reward/mean\":0.5}\n");
  EXPECT_THAT(ComparePage({scratch_.path(), other.path()}).status().message(), ::testing::HasSubstr(other.path()));
  other.Write("run.textproto", "seed: 2\n");
  const absl::StatusOr<std::string> page = ComparePage({scratch_.path(), other.path()});
  ASSERT_TRUE(page.ok()) << page.status();
  const Json runs = DataOf(*page)["runs"];
  ASSERT_EQ(runs.size(), 2);
  EXPECT_EQ(runs[0]["cols"]["reward/mean"], 0.5);
  EXPECT_EQ(runs[1]["config"][0], Json({"seed", "2", "42", "", 1}));
  EXPECT_FALSE(runs[0].contains("samples"));
}

TEST_F(RunPageTest, IsWrittenAtFirstAndWhenTheRunEnds) {
  const auto written = [&] { return ReadFile(scratch_.path() + "/report.html"); };
  {
    const PageWriter writer(scratch_.path(), absl::Hours(1));
    for (int i = 0; i < 1000 && !written().ok(); ++i) absl::SleepFor(absl::Milliseconds(10));
    ASSERT_TRUE(written().ok());
    EXPECT_TRUE(DataOf(*written())["x"].empty());
    Append("metrics.jsonl", "{\"step\":0,\"reward/mean\":0.5}\n");
  }
  EXPECT_EQ(DataOf(*written())["x"], Json({1}));
}

TEST_F(RunPageTest, ThatCannotBeWrittenEndsNothing) {
  PageWriter writer(scratch_.path() + "/is/not/there", absl::Milliseconds(1));
  EXPECT_THAT(std::string(writer.End().message()), ::testing::HasSubstr("/is/not/there/report.html"));
}

}  // namespace
}  // namespace quartet
