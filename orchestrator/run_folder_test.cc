#include "orchestrator/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/config/run_config.h"
#include "orchestrator/fake_services.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RunConfig ConfigIn(const std::string& folder) {
  RunConfig config;
  config.set_run_dir(folder);
  EXPECT_TRUE(ResolveRunConfig(&config, "").ok());
  return config;
}

TEST(RunFolder, KeepsTheConfigurationReadable) {
  const ScratchFolder scratch;
  const RunConfig config = ConfigIn(scratch.path() + "/a/b");
  const auto folder = RunFolder::Create(config);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const auto read = LoadRunConfig((*folder)->config_path(), {}, "");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->SerializeAsString(), config.SerializeAsString());
}

TEST(RunFolder, NeverWritesOverAnotherRun) {
  const ScratchFolder scratch;
  scratch.Write("run/metrics.jsonl", "{}\n");
  const auto folder = RunFolder::Create(ConfigIn(scratch.path() + "/run"));
  EXPECT_EQ(folder.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(folder.status().message()),
              AllOf(HasSubstr(scratch.path() + "/run is not empty"), HasSubstr("metrics.jsonl")));
  EXPECT_EQ(scratch.Read("run/metrics.jsonl"), "{}\n");
}

TEST(RunFolder, ToleratesTheEntryThatItIsTold) {
  const ScratchFolder scratch;
  scratch.Write("run/start/data", "");
  EXPECT_FALSE(RunFolder::Create(ConfigIn(scratch.path() + "/run")).ok());
  EXPECT_TRUE(RunFolder::Create(ConfigIn(scratch.path() + "/run"), "start").ok());
}

TEST(RunFolder, RefusesAFile) {
  const ScratchFolder scratch;
  const std::string file = scratch.Write("file", "");
  EXPECT_THAT(std::string(RunFolder::Create(ConfigIn(file)).status().message()), HasSubstr("is a file"));
}

TEST(RunFolder, WritesNumbersAsJson) {
  const ScratchFolder scratch;
  const auto folder = RunFolder::Create(ConfigIn(scratch.path() + "/run"));
  ASSERT_TRUE(folder.ok()) << folder.status();
  Metrics metrics;
  metrics.Set("tokens/generated", 123456);
  metrics.Set("policy/loss", -0.1);
  metrics.Set("policy/grad_norm", NAN);
  ASSERT_TRUE((*folder)->WriteMetrics(3, metrics).ok());
  EXPECT_EQ(scratch.Read("run/metrics.jsonl"),
            "{\"step\":3,\"tokens/generated\":123456,\"policy/loss\":-0.1,\"policy/grad_norm\":null}\n");
}

TEST(RunFolder, WritesSamplesWhateverTheModelSaid) {
  const ScratchFolder scratch;
  const auto folder = RunFolder::Create(ConfigIn(scratch.path() + "/run"));
  ASSERT_TRUE(folder.ok()) << folder.status();
  SampleRecord sample;
  sample.prompt = "line\nbreak \"quoted\"";
  sample.response = "\xff\xfe";
  sample.parts["exact_match"] = 1;
  ASSERT_TRUE((*folder)->WriteSamples({sample}).ok());
  const auto line = nlohmann::json::parse(scratch.Read("run/samples.jsonl"));
  EXPECT_EQ(line["prompt"], sample.prompt);
  EXPECT_EQ(line["response"], "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_TRUE(line["kl"].is_null());
}

TEST(RunFolder, PointsLatestAtTheNewestCheckpoint) {
  const ScratchFolder scratch;
  const auto folder = RunFolder::Create(ConfigIn(scratch.path() + "/run"));
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE((*folder)->PointLatestAt("step_1").ok());
  ASSERT_TRUE((*folder)->PointLatestAt("step_2").ok());
  EXPECT_EQ(std::filesystem::read_symlink(scratch.path() + "/run/checkpoints/latest"), "step_2");
}

TEST(RunFolder, KeepsTheNewestCheckpoints) {
  const ScratchFolder scratch;
  const auto folder = RunFolder::Create(ConfigIn(scratch.path() + "/run"));
  ASSERT_TRUE(folder.ok()) << folder.status();
  for (const char* id : {"step_2", "step_10", "step_9", "best", "step_x"}) {
    scratch.Write(std::string("run/checkpoints/") + id + "/policy/config.json", "{}");
  }
  const auto there = [&](const std::string& id) {
    return std::filesystem::exists(scratch.path() + "/run/checkpoints/" + id);
  };
  ASSERT_TRUE((*folder)->RemoveOldCheckpoints(0).ok());
  EXPECT_TRUE(there("step_2"));
  ASSERT_TRUE((*folder)->RemoveOldCheckpoints(2).ok());
  EXPECT_FALSE(there("step_2")) << "the oldest by number, not by name";
  EXPECT_TRUE(there("step_9") && there("step_10") && there("best") && there("step_x"));
}

TEST(RunFolder, GoesOnAfterAStepAndForgetsWhatCameAfterIt) {
  const ScratchFolder scratch;
  const RunConfig config = ConfigIn(scratch.path() + "/run");
  {
    const auto folder = RunFolder::Create(config);
    ASSERT_TRUE(folder.ok()) << folder.status();
    for (int step = 0; step < 4; ++step) {
      ASSERT_TRUE((*folder)->WriteMetrics(step, Metrics()).ok());
      SampleRecord sample;
      sample.step = step;
      ASSERT_TRUE((*folder)->WriteSamples({sample, sample}).ok());
    }
    ASSERT_TRUE((*folder)->WriteHeldout({{"a", "b"}}).ok());
  }
  scratch.Write("run/metrics.jsonl", scratch.Read("run/metrics.jsonl") + "{\"step\":4,\"half a rec");
  scratch.Write("run/checkpoints/step_2/checkpoint.json", "{}");
  scratch.Write("run/checkpoints/step_4/policy/config.json", "{}");

  const auto folder = RunFolder::Resume(config, 2);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE((*folder)->WriteMetrics(2, Metrics()).ok());
  ASSERT_TRUE((*folder)->WriteHeldout({{"a", "b"}}).ok());
  EXPECT_EQ(scratch.Read("run/metrics.jsonl"), "{\"step\":0}\n{\"step\":1}\n{\"step\":2}\n");
  const std::string samples = scratch.Read("run/samples.jsonl");
  EXPECT_EQ(std::count(samples.begin(), samples.end(), '\n'), 4);
  EXPECT_TRUE(std::filesystem::exists(scratch.path() + "/run/checkpoints/step_2"));
  EXPECT_FALSE(std::filesystem::exists(scratch.path() + "/run/checkpoints/step_4"));
}

TEST(AppendFile, LeavesNoHalfRecordWhenThereIsNoRoom) {
  const ScratchFolder scratch;
  const auto file = AppendFile::Create(scratch.path() + "/file");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append("first\n").ok());
  // A limit on the size of files stands for a full disk.
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = (*file)->Append("a longer record\n");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("cannot write 16 bytes"), HasSubstr("/file")));
  EXPECT_EQ(scratch.Read("file"), "first\n");
  ASSERT_TRUE((*file)->Append("second\n").ok());
  EXPECT_EQ(scratch.Read("file"), "first\nsecond\n");
}

}  // namespace
}  // namespace quartet
