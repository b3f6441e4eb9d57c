#include "core/run_folder/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/testing/scratch_folder.h"
#include "core/config/run_config.h"
#include "core/run_folder/testing/tensorboard_reader.h"

namespace quartet {
namespace {

// Of metrics.jsonl, what does not depend on the clock.
std::string WithoutTimes(const std::string& text) {
  return std::regex_replace(text, std::regex(",\"time/unix\":[0-9.]+"), "");
}

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RunConfig ConfigIn(const std::string& folder) {
  RunConfig config;
  config.set_run_dir(folder);
  EXPECT_TRUE(ResolveRunConfig(&config, "").ok());
  return config;
}

// A new run's folder, ready to be written.
std::unique_ptr<RunFolder> Begin(const RunConfig& config) {
  absl::StatusOr<std::unique_ptr<RunFolder>> folder = RunFolder::Create(config);
  EXPECT_TRUE(folder.ok()) << folder.status();
  if (!folder.ok()) return nullptr;
  const absl::Status begun = (*folder)->BeginAfter(0);
  EXPECT_TRUE(begun.ok()) << begun;
  return *std::move(folder);
}

TEST(RunFolder, KeepsTheConfigurationReadable) {
  const ScratchFolder scratch;
  const RunConfig config = ConfigIn(scratch.path() + "/a/b");
  const auto folder = Begin(config);
  ASSERT_NE(folder, nullptr);
  const auto read = LoadRunConfig(folder->config_path(), {}, "");
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
  EXPECT_EQ(WithoutTimes(scratch.Read("run/metrics.jsonl")), "{}\n");
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
  const auto folder = Begin(ConfigIn(scratch.path() + "/run"));
  ASSERT_NE(folder, nullptr);
  Metrics metrics;
  metrics.Set("tokens/generated", 1);
  metrics.Set("policy/loss", -0.1);
  metrics.Set("policy/grad_norm", NAN);
  metrics.Set("tokens/generated", 123456);  // in its place
  ASSERT_TRUE(folder->WriteMetrics(3, metrics).ok());
  EXPECT_EQ(WithoutTimes(scratch.Read("run/metrics.jsonl")),
            "{\"step\":3,\"tokens/generated\":123456,\"policy/loss\":-0.1,\"policy/grad_norm\":null}\n");
}

TEST(RunFolder, WritesSamplesWhateverTheModelSaid) {
  const ScratchFolder scratch;
  const auto folder = Begin(ConfigIn(scratch.path() + "/run"));
  ASSERT_NE(folder, nullptr);
  SampleRecord sample;
  sample.prompt = "line\nbreak \"quoted\"";
  sample.response = "\xff\xfe";
  sample.parts["exact_match"] = 1;
  sample.parts["format"] = 0.3f;
  sample.reward = 1.3f;
  ASSERT_TRUE(folder->WriteSamples({sample}).ok());
  const auto line = nlohmann::json::parse(scratch.Read("run/samples.jsonl"));
  EXPECT_EQ(line["prompt"], sample.prompt);
  EXPECT_EQ(line["response"], "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_TRUE(line["kl"].is_null());
  EXPECT_EQ(line["parts"].dump(), R"({"exact_match":1,"format":0.3})");
  EXPECT_EQ(line["reward"].dump(), "1.3");
  EXPECT_FALSE(line.contains("token_rewards")) << "no source gives such";
  EXPECT_FALSE(line.contains("sequences")) << "it is one answer to one prompt";
  for (const double number : {0.1 + 0.2, 1.0 / 3, 1e-300}) EXPECT_EQ(ShortestOfFp32(number), number);
  for (const float number : {0.1f, 1.0f / 3, 1e-40f, 3e38f, -2.5f, 16777216.0f}) {
    EXPECT_EQ(static_cast<float>(ShortestOfFp32(number)), number);
  }
}

TEST(RunFolder, WritesTheSequencesOfASampleWithWhatOfThemIsTrainedOn) {
  SampleRecord sample;
  sample.sequences = {{{"a?", false}, {"b\xff", true}}, {{"", true}}};
  EXPECT_THAT(
      LineOf(sample),
      HasSubstr("\"sequences\":[[{\"text\":\"a?\",\"trained\":false},{\"text\":\"b\xef\xbf\xbd\",\"trained\":true}],"
                "[{\"text\":\"\",\"trained\":true}]],\"kl\":null"));
}

TEST(RunFolder, WritesEvaluationsWithHowTheyWereMade) {
  const ScratchFolder scratch;
  const auto folder = Begin(ConfigIn(scratch.path() + "/run"));
  ASSERT_NE(folder, nullptr);
  EvaluationRecord record = {.step = 9,
                             .model = "first/step_10",
                             .set = "aime",
                             .data = "/d.parquet",
                             .prompts = 30,
                             .n_samples_per_prompt = 8,
                             .temperature = 0.5};
  record.values.Set("pass@8", 0.25);
  ASSERT_TRUE(folder->WriteEvaluation(record).ok());
  EXPECT_EQ(scratch.Read("run/evaluations.jsonl"),
            "{\"step\":9,\"model\":\"first/step_10\",\"set\":\"aime\",\"data\":\"/d.parquet\",\"prompts\":30,"
            "\"n_samples_per_prompt\":8,"
            "\"temperature\":0.5,\"top_p\":1,\"pass@8\":0.25}\n");
}

TEST(RunFolder, PointsLatestAtTheNewestCheckpoint) {
  const ScratchFolder scratch;
  const auto folder = Begin(ConfigIn(scratch.path() + "/run"));
  ASSERT_NE(folder, nullptr);
  ASSERT_TRUE(folder->PointLatestAt("step_1").ok());
  ASSERT_TRUE(folder->PointLatestAt("step_2").ok());
  EXPECT_EQ(std::filesystem::read_symlink(scratch.path() + "/run/checkpoints/latest"), "step_2");
}

TEST(RunFolder, KeepsTheNewestCheckpoints) {
  const ScratchFolder scratch;
  const auto folder = Begin(ConfigIn(scratch.path() + "/run"));
  ASSERT_NE(folder, nullptr);
  for (const char* id : {"step_2", "step_10", "step_9", "best", "step_x"}) {
    scratch.Write(std::string("run/checkpoints/") + id + "/checkpoint.json", "{}");
  }
  for (const char* unfinished : {"step_1", "step_11", "step_12"}) {
    scratch.Write(std::string("run/checkpoints/") + unfinished + "/policy/config.json", "{}");
  }
  const auto there = [&](const std::string& id) {
    return std::filesystem::exists(scratch.path() + "/run/checkpoints/" + id);
  };
  ASSERT_TRUE(folder->RemoveOldCheckpoints(0).ok());
  EXPECT_TRUE(there("step_2"));
  ASSERT_TRUE(folder->RemoveOldCheckpoints(2).ok());
  EXPECT_FALSE(there("step_2")) << "the oldest by number, not by name";
  EXPECT_FALSE(there("step_1")) << "which nobody finishes any more";
  EXPECT_TRUE(there("step_9") && there("step_10")) << "those that are not finished do not count";
  EXPECT_TRUE(there("step_11") && there("best") && there("step_x"));
}

TEST(RunFolder, PutsAsideTheWarningsOfStepsThatAreMadeAgain) {
  const ScratchFolder scratch;
  const RunConfig config = ConfigIn(scratch.path() + "/run");
  {
    const auto folder = Begin(config);
    ASSERT_NE(folder, nullptr);
    for (const auto& [kind, step] : std::vector<std::pair<std::string, int64_t>>{
             {"warning", -1}, {"warning", 1}, {"restart", 3}, {"warning", 2}, {"upgrade", 3}, {"error", 4}}) {
      ASSERT_TRUE(folder->WriteEvent(kind, step, "orchestrator", absl::StrCat(kind, step)).ok());
    }
  }
  const auto again = RunFolder::Open(config);
  ASSERT_TRUE(again.ok() && (*again)->BeginAfter(2).ok());
  const auto texts = [&scratch](const std::string& name) {
    std::vector<std::string> read;
    for (const absl::string_view line : absl::StrSplit(scratch.Read(name), '\n', absl::SkipEmpty())) {
      read.push_back(nlohmann::json::parse(line)["text"]);
    }
    return read;
  };
  EXPECT_THAT(texts("run/events.jsonl"), testing::ElementsAre("warning-1", "warning1", "restart3", "upgrade3"));
  EXPECT_THAT(texts("run/superseded/1/events.jsonl"), testing::ElementsAre("warning2", "error4"));
}

TEST(RunFolder, IsForOneOrchestratorAtATime) {
  const ScratchFolder scratch;
  const RunConfig config = ConfigIn(scratch.path() + "/run");
  {
    const auto first = Begin(config);
    ASSERT_NE(first, nullptr);
    for (const absl::Status& second : {RunFolder::Open(config).status(), RunFolder::Create(config).status()}) {
      EXPECT_EQ(second.code(), absl::StatusCode::kAborted) << second;
      EXPECT_THAT(std::string(second.message()), HasSubstr(absl::StrCat("process ", getpid())));
    }
  }
  EXPECT_TRUE(RunFolder::Open(config).ok());
}

TEST(RunFolder, IsCreatedWhereAnOrchestratorEndedBeforeItWroteAnything) {
  const ScratchFolder scratch;
  scratch.Write("run/run.lock", "process 1 on a host\n");
  EXPECT_FALSE(RunFolder::HasRun(scratch.path() + "/run"));
  EXPECT_NE(Begin(ConfigIn(scratch.path() + "/run")), nullptr);
  EXPECT_TRUE(RunFolder::HasRun(scratch.path() + "/run"));
}

// A start that a service refused, for an option that is corrected.
TEST(RunFolder, IsUsedAgainWhereNoServiceHasAcceptedTheRun) {
  const ScratchFolder scratch;
  RunConfig config = ConfigIn(scratch.path() + "/run");
  ASSERT_TRUE(RunFolder::Create(config).ok());
  scratch.Write("run/logs/rollout.log", "why it did not start");
  EXPECT_FALSE(RunFolder::HasRun(scratch.path() + "/run"));
  config.set_seed(7);
  ASSERT_NE(Begin(config), nullptr);
  EXPECT_THAT(scratch.Read("run/run.textproto"), HasSubstr("seed: 7"));
  EXPECT_FALSE(std::filesystem::exists(scratch.path() + "/run/superseded"));
}

TEST(RunFolder, IsUsedAgainWhereNoStepWasFinished) {
  const ScratchFolder scratch;
  RunConfig config = ConfigIn(scratch.path() + "/run");
  {
    const auto folder = Begin(config);
    ASSERT_NE(folder, nullptr);
    ASSERT_TRUE(folder->WriteHeldout({{"a", "b"}}).ok());
    SampleRecord sample;
    sample.response = "of a step that was not finished";
    ASSERT_TRUE(folder->WriteSamples({sample}).ok());
    // Before the first step, and what a kill has left of writing.
    ASSERT_TRUE(folder->WriteEvaluation({.step = -1, .set = "gsm8k", .data = "/d", .prompts = 2}).ok());
    scratch.Write("run/state.json.0badc0de", "{");
    scratch.Write("run/phase.json.new", "{");
  }
  config.set_seed(7);
  ASSERT_NE(Begin(config), nullptr);
  EXPECT_EQ(scratch.Read("run/evaluations.jsonl"), "");
  EXPECT_THAT(scratch.Read("run/superseded/1/evaluations.jsonl"), HasSubstr("gsm8k"));
  EXPECT_EQ(scratch.Read("run/samples.jsonl"), "");
  EXPECT_THAT(scratch.Read("run/run.textproto"), HasSubstr("seed: 7"));
  EXPECT_THAT(scratch.Read("run/superseded/1/run.textproto"), HasSubstr("seed: 42"));
  EXPECT_THAT(scratch.Read("run/superseded/1/samples.jsonl"), HasSubstr("not finished"));
}

TEST(RunFolder, IsNotUsedAgainWhereThereAreResultsOrOtherFiles) {
  for (const std::string name :
       {"metrics.jsonl", "checkpoints/step_1/policy/config.json", "notes.txt", "metrics.jsonl.old"}) {
    const ScratchFolder scratch;
    const RunConfig config = ConfigIn(scratch.path() + "/run");
    ASSERT_NE(Begin(config), nullptr);
    scratch.Write("run/" + name, "{}\n");
    const absl::Status status = RunFolder::Create(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name.substr(0, name.find("/policy"))));
  }
}

// Four steps, with checkpoints after two and three of them, one after four that was not finished, and a last line that
// is half written.
class InterruptedRun : public ::testing::Test {
 protected:
  InterruptedRun() {
    const auto folder = Begin(config_);
    for (int step = 0; step < 4; ++step) {
      EXPECT_TRUE(folder->WriteMetrics(step, Metrics()).ok());
      SampleRecord sample;
      sample.step = step;
      EXPECT_TRUE(folder->WriteSamples({sample, sample}).ok());
    }
    for (const int step : {-1, 1, 3}) {
      EXPECT_TRUE(folder->WriteEvaluation({.step = step, .set = "gsm8k", .data = "/d", .prompts = 2}).ok());
    }
    EXPECT_TRUE(folder->WriteHeldout({{"a", "b"}}).ok());
    scratch_.Write("run/metrics.jsonl", WithoutTimes(scratch_.Read("run/metrics.jsonl")) + "{\"step\":4,\"half a rec");
    scratch_.Write("run/checkpoints/step_2/checkpoint.json", "two");
    scratch_.Write("run/checkpoints/step_3/checkpoint.json", "three");
    scratch_.Write("run/checkpoints/step_4/policy/config.json", "four");
    scratch_.Write("run/batches/step_2.safetensors", "two");
    scratch_.Write("run/batches/step_3.safetensors", "three");
  }

  bool There(const std::string& name) const { return std::filesystem::exists(scratch_.path() + "/run/" + name); }
  // The steps in TensorBoard's files of `folder`, in the order of the files.
  std::vector<int64_t> EventSteps(const std::string& folder) const {
    std::set<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(scratch_.path() + "/" + folder)) {
      const std::string name = entry.path().filename();
      if (absl::StartsWith(name, "events.")) files.insert(folder + "/" + name);
    }
    std::vector<int64_t> steps;
    for (const std::string& file : files) {
      const auto events = ReadTensorBoardEvents(scratch_.Read(file));
      EXPECT_TRUE(events.ok()) << file << ": " << events.status();
      if (!events.ok() || events->empty()) continue;
      EXPECT_EQ((*events)[0].file_version(), "brain.Event:2") << file;
      for (size_t i = 1; i < events->size(); ++i) steps.push_back((*events)[i].step());
    }
    return steps;
  }
  int64_t Lines(const std::string& name) const {
    const std::string text = scratch_.Read("run/" + name);
    return std::count(text.begin(), text.end(), '\n');
  }

  ScratchFolder scratch_;
  RunConfig config_ = ConfigIn(scratch_.path() + "/run");
};

TEST_F(InterruptedRun, ChangesNothingUntilItBegins) {
  std::map<std::string, std::string> before = scratch_.Contents();
  ASSERT_TRUE(RunFolder::Open(config_).ok());
  std::map<std::string, std::string> after = scratch_.Contents();
  before.erase("run/run.lock");
  after.erase("run/run.lock");
  EXPECT_EQ(after, before);
}

TEST_F(InterruptedRun, PutsAsideWhatCameAfterTheStep) {
  const auto folder = RunFolder::Open(config_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE((*folder)->BeginAfter(2).ok());
  EXPECT_EQ((*folder)->last_recorded_step(), 1);
  ASSERT_TRUE((*folder)->WriteMetrics(2, Metrics()).ok());
  ASSERT_TRUE((*folder)->WriteHeldout({{"a", "b"}}).ok());
  EXPECT_EQ(WithoutTimes(scratch_.Read("run/metrics.jsonl")), "{\"step\":0}\n{\"step\":1}\n{\"step\":2}\n");
  EXPECT_EQ(Lines("samples.jsonl"), 4);
  EXPECT_THAT(EventSteps("run"), ElementsAre(0, 1, 2));
  EXPECT_EQ(scratch_.Read("run/checkpoints/step_2/checkpoint.json"), "two");
  EXPECT_FALSE(There("checkpoints/step_3") || There("checkpoints/step_4"));
  EXPECT_EQ(std::filesystem::read_symlink(scratch_.path() + "/run/checkpoints/latest"), "step_2");

  EXPECT_EQ(WithoutTimes(scratch_.Read("run/superseded/1/metrics.jsonl")),
            "{\"step\":2}\n{\"step\":3}\n{\"step\":4,\"half a rec\n");
  EXPECT_EQ(Lines("superseded/1/samples.jsonl"), 4);
  EXPECT_EQ(Lines("evaluations.jsonl"), 2);
  EXPECT_EQ(Lines("superseded/1/evaluations.jsonl"), 1);
  EXPECT_THAT(EventSteps("run/superseded/1"), ElementsAre(2, 3));
  EXPECT_EQ(scratch_.Read("run/superseded/1/checkpoints/step_3/checkpoint.json"), "three");
  EXPECT_EQ(scratch_.Read("run/superseded/1/checkpoints/step_4/policy/config.json"), "four");
  EXPECT_FALSE(There("superseded/1/batches/step_2.safetensors"));
  EXPECT_TRUE(There("superseded/1/batches/step_3.safetensors"));
  EXPECT_FALSE(There("superseded/1/run.textproto")) << "it is the same";
  EXPECT_FALSE(There("superseded/1/heldout.jsonl"));
}

TEST_F(InterruptedRun, KnowsWhichStepsAreNotRecordedAnyMore) {
  const auto missing = [this](const std::string& metrics, int64_t steps) {
    scratch_.Write("run/metrics.jsonl", metrics);
    const auto folder = RunFolder::Open(config_);
    EXPECT_TRUE(folder.ok() && (*folder)->BeginAfter(steps).ok());
    return (*folder)->missing_steps();
  };
  EXPECT_THAT(missing("{\"step\":0}\n{\"step\":1}\n{\"step\":2}\n", 2), IsEmpty());
  EXPECT_THAT(missing("{\"step\":0}\n", 3), ElementsAre(1, 2));
  EXPECT_THAT(missing("{\"step\":0}\n{\"step\":1,\"loss\n{\"step\":2}\n", 3), ElementsAre(1));
  EXPECT_THAT(missing("", 2), ElementsAre(0, 1));
  EXPECT_THAT(missing("", 0), IsEmpty());
}

TEST_F(InterruptedRun, PutsAsideEverythingWhereItBeginsAnew) {
  config_.set_seed(7);
  const auto folder = RunFolder::Open(config_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE((*folder)->PointLatestAt("step_3").ok());
  ASSERT_TRUE((*folder)->BeginAfter(0).ok());
  ASSERT_TRUE((*folder)->WriteHeldout({{"c", "d"}}).ok());
  EXPECT_EQ((*folder)->last_recorded_step(), -1);
  EXPECT_EQ(WithoutTimes(scratch_.Read("run/metrics.jsonl")) + scratch_.Read("run/samples.jsonl"), "");
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path() + "/run/checkpoints"));
  EXPECT_THAT(scratch_.Read("run/run.textproto"), HasSubstr("seed: 7"));
  EXPECT_EQ(Lines("superseded/1/metrics.jsonl"), 5);
  EXPECT_EQ(Lines("superseded/1/samples.jsonl"), 8);
  EXPECT_EQ(scratch_.Read("run/evaluations.jsonl"), "");
  EXPECT_EQ(Lines("superseded/1/evaluations.jsonl"), 3);
  EXPECT_THAT(EventSteps("run"), IsEmpty());
  EXPECT_THAT(EventSteps("run/superseded/1"), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(scratch_.Read("run/superseded/1/checkpoints/step_2/checkpoint.json"), "two");
  EXPECT_THAT(scratch_.Read("run/superseded/1/run.textproto"), HasSubstr("seed: 42"));
  EXPECT_EQ(scratch_.Read("run/superseded/1/heldout.jsonl"), "{\"prompt\":\"a\",\"label\":\"b\"}\n");
}

TEST_F(InterruptedRun, PutsCheckpointsAsideOnTheFileSystemThatTheyAreOn) {
  // As where they are linked to a larger disk.
  std::string other = "/dev/shm/quartet_checkpoints_XXXXXX";
  if (mkdtemp(other.data()) == nullptr) GTEST_SKIP() << "there is no /dev/shm";
  const std::string checkpoints = scratch_.path() + "/run/checkpoints";
  std::filesystem::copy(checkpoints, other,
                        std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
  std::filesystem::remove_all(checkpoints);
  std::filesystem::create_directory_symlink(other, checkpoints);
  const auto folder = RunFolder::Open(config_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE((*folder)->BeginAfter(2).ok());
  EXPECT_TRUE(There("checkpoints/step_2/checkpoint.json"));
  EXPECT_EQ(scratch_.Read("run/checkpoints/superseded/1/step_3/checkpoint.json"), "three");
  EXPECT_EQ(Lines("superseded/1/samples.jsonl"), 4);
  std::filesystem::remove_all(other);
}

TEST_F(InterruptedRun, KeepsWhatEachContinuationPutAside) {
  for (const int steps : {3, 2}) {
    const auto folder = RunFolder::Open(config_);
    ASSERT_TRUE(folder.ok() && (*folder)->BeginAfter(steps).ok());
  }
  EXPECT_TRUE(There("superseded/1/checkpoints/step_4") && There("superseded/2/checkpoints/step_3"));
  EXPECT_EQ(WithoutTimes(scratch_.Read("run/superseded/1/metrics.jsonl")), "{\"step\":3}\n{\"step\":4,\"half a rec\n");
  EXPECT_EQ(WithoutTimes(scratch_.Read("run/superseded/2/metrics.jsonl")), "{\"step\":2}\n");
  EXPECT_THAT(EventSteps("run"), ElementsAre(0, 1));
  EXPECT_THAT(EventSteps("run/superseded/1"), ElementsAre(3));
  EXPECT_THAT(EventSteps("run/superseded/2"), ElementsAre(2));
}

TEST_F(InterruptedRun, PutsAsideACopyWithTheNameOfTheLink) {
  scratch_.Write("run/checkpoints/latest/checkpoint.json", "three");  // as cp -L makes it
  const auto folder = RunFolder::Open(config_);
  ASSERT_TRUE(folder.ok() && (*folder)->BeginAfter(3).ok());
  EXPECT_EQ(std::filesystem::read_symlink(scratch_.path() + "/run/checkpoints/latest"), "step_3");
  EXPECT_EQ(scratch_.Read("run/superseded/1/checkpoints/latest/checkpoint.json"), "three");
}

// The paths that were synced, in their order, and the sizes of writes to *.jsonl, as this program's calls of fsync,
// fdatasync and write say.
std::vector<std::string>& Synced() {
  static auto* paths = new std::vector<std::string>;
  return *paths;
}
std::vector<size_t>& LineWrites() {
  static auto* sizes = new std::vector<size_t>;
  return *sizes;
}

std::string PathOf(int fd) {
  std::error_code error;
  return std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", fd), error).string();
}

TEST(RunFolder, SyncsTheLinkToACheckpointAndTheRecordsBehindIt) {
  const ScratchFolder scratch;
  const auto folder = Begin(ConfigIn(scratch.path() + "/run"));
  ASSERT_NE(folder, nullptr);
  Synced().clear();
  ASSERT_TRUE(folder->SyncRecords().ok());
  EXPECT_THAT(Synced(), AllOf(Contains(folder->metrics_path()), Contains(folder->samples_path())));
  Synced().clear();
  ASSERT_TRUE(folder->PointLatestAt("step_2").ok());
  EXPECT_THAT(Synced(), ElementsAre(folder->checkpoints_path()));
}

TEST(RunFolder, WritesTheRecordsOfAStepInOnePiece) {
  const ScratchFolder scratch;
  const auto folder = Begin(ConfigIn(scratch.path() + "/run"));
  ASSERT_NE(folder, nullptr);
  Metrics metrics;
  for (int i = 0; i < 1000; ++i) metrics.Set(absl::StrCat("a name of some length/", i), 0.1 * i);
  LineWrites().clear();
  ASSERT_TRUE(folder->WriteMetrics(0, metrics).ok());
  EXPECT_THAT(LineWrites(), ElementsAre(scratch.Read("run/metrics.jsonl").size()));
  SampleRecord sample;
  sample.response = std::string(100000, 'x');
  LineWrites().clear();
  ASSERT_TRUE(folder->WriteSamples({sample, sample}).ok());
  EXPECT_THAT(LineWrites(), ElementsAre(scratch.Read("run/samples.jsonl").size()));
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

// In the place of the C library's.
extern "C" int fsync(int fd) {
  quartet::Synced().push_back(quartet::PathOf(fd));
  return static_cast<int>(syscall(SYS_fsync, fd));
}
extern "C" int fdatasync(int fd) {
  quartet::Synced().push_back(quartet::PathOf(fd));
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}
extern "C" ssize_t write(int fd, const void* data, size_t size) {
  if (absl::EndsWith(quartet::PathOf(fd), ".jsonl")) quartet::LineWrites().push_back(size);
  return syscall(SYS_write, fd, data, size);
}
