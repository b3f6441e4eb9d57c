// Agents over real processes: a program plays with a policy, and the policy learns from it.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/config/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "quickstart/guessing_task.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kAgentQuickstart[] = "quickstart/agent";
constexpr absl::Duration kLong = absl::Minutes(2);

TEST(Agent, LearnsAGameOfSeveralTurnsFromChanceToSolved) {
  ProcessHarness harness;
  const std::string run_dir = harness.Path("run");
  const auto outcome = harness.Run(kAgentQuickstart, {"--run_dir=" + run_dir, "--seed=1"}, absl::Minutes(10));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const std::vector<json> metrics = ReadRecords(run_dir + "/metrics.jsonl");
  ASSERT_GE(metrics.size(), 6u);
  EXPECT_LT(metrics.front().at("reward/mean").get<double>(), 0.5) << outcome.output;
  EXPECT_GT(metrics.back().at("reward/mean").get<double>(), 0.85) << outcome.output;
  EXPECT_LT(metrics.front().at("eval/heldout/pass@1").get<double>(), 0.5);
  EXPECT_GT(metrics.back().at("eval/heldout/pass@1").get<double>(), 0.8);
  for (const json& step : metrics) {
    EXPECT_LT(step.at("rollout/log_prob_diff_max").get<double>(), 1e-4);
    EXPECT_EQ(step.at("agent/branches").get<double>(), 0);  // each game is one sequence
    EXPECT_EQ(step.at("agent/refused").get<double>(), 0);
  }
  EXPECT_THAT(harness.Survivors(absl::Seconds(5)), IsEmpty());
}

// What agents below have in common: calls, and what happens once.
constexpr char kAgent[] = R"py(
import json, os, sys, time, urllib.error, urllib.request

FOLDER = sys.argv[1]


def call(base_url, api_key, messages):  # status and text
    request = urllib.request.Request(
        base_url + "/chat/completions", json.dumps({"messages": messages}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + api_key})
    try:
        with urllib.request.urlopen(request) as reply:
            return 200, json.load(reply)["choices"][0]["message"]["content"] or ""
    except urllib.error.HTTPError as refused:
        return refused.code, ""


def is_first(name):
    try:
        os.mkdir(os.path.join(FOLDER, name))
        return True
    except FileExistsError:
        return False

)py";

// Asks three times, and is glad of each answer that begins with a number. Where it finds the folder "hold", one episode
// of the last step does not end the first time.
constexpr char kThreeTurns[] = R"py(
def play(episode):
    messages, numbers = [], 0
    for sign in "?<>":
        messages.append({"role": "user", "content": sign})
        text = call(episode["base_url"], episode["api_key"], messages)[1]
        messages.append({"role": "assistant", "content": text})
        numbers += text[:1].isdigit()
        if (episode["episode"] == {"step": 2, "row": 1, "sample": 1} and os.path.exists(os.path.join(FOLDER, "hold"))
                and is_first("held")):
            time.sleep(1000)
    return {"reward": numbers}


for line in sys.stdin:
    print(json.dumps(play(json.loads(line))), flush=True)
)py";

// Runs of few steps of the quickstart's model in bf16, each step of four rows with four samples.
class ShortRun : public testing::Test {
 protected:
  // The arguments of a run into the folder `name` by an agent whose program is `source` behind kAgent.
  std::vector<std::string> Arguments(const std::string& name, const std::string& source,
                                     const std::vector<std::string>& fields = {}) const {
    GuessingTaskFiles files;
    EXPECT_TRUE(WriteGuessingTask(harness_.Path("game"), /*seed=*/1, &files).ok());
    std::filesystem::create_directories(Once(name));
    const std::string agent =
        absl::StrCat("exec python3 ", harness_.Write(name + ".py", std::string(kAgent) + source), " ", Once(name));
    RunConfig config = GuessingConfig(files, agent, harness_.Path(name), /*seed=*/1);
    config.clear_eval();
    config.mutable_actor()->set_dtype("bf16");
    config.mutable_rollout()->set_dtype("bf16");
    config.mutable_rollout()->set_rollout_batch_size(4);
    config.mutable_rollout()->set_n_samples_per_prompt(4);
    config.mutable_train()->set_train_batch_size(8);
    config.mutable_train()->set_max_steps(kSteps);
    config.mutable_train()->set_save_steps(1);
    std::vector<std::string> arguments = {"--launch",
                                          "--config=" + harness_.Write(name + ".textproto", PrintRunConfig(config))};
    for (const std::string& field : fields) arguments.push_back("--set=" + field);
    return arguments;
  }
  // What an agent has seen once.
  std::string Once(const std::string& name) const { return harness_.Path(name + "_once"); }
  ProcessHarness::Outcome Run(const std::vector<std::string>& arguments) {
    return harness_.Run(kOrchestrator, arguments, kLong);
  }
  std::vector<json> Metrics(const std::string& run) const { return ReadRecords(harness_.Path(run) + "/metrics.jsonl"); }

  // All that one run has made of its steps is what the other one has.
  void ExpectSameBits(const std::string& run, const std::string& expected) const {
    for (const std::string file : {"/samples.jsonl", "/checkpoints/latest/policy/model.safetensors"}) {
      EXPECT_TRUE(Bytes(harness_.Path(run) + file) == Bytes(harness_.Path(expected) + file)) << file;
      EXPECT_FALSE(Bytes(harness_.Path(run) + file).empty()) << file;
    }
    const std::vector<json> records = Metrics(run), same = Metrics(expected);
    ASSERT_EQ(records.size(), size_t{kSteps});
    ASSERT_EQ(same.size(), size_t{kSteps});
    for (size_t step = 0; step < kSteps; ++step) {
      EXPECT_EQ(OfTheStep(records[step]), OfTheStep(same[step])) << "step " << step;
      EXPECT_EQ(records[step].at("agent/calls"), 3);
      EXPECT_GT(records[step].at("policy/grad_norm"), 0);  // else weights would be the same whatever was drawn
    }
  }

  static constexpr int kSteps = 3;
  ProcessHarness harness_;

 private:
  static std::string Bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Metrics but for those of processes: times, memory, what a rollout has done since its start.
  static json OfTheStep(const json& record) {
    json kept = json::object();
    for (const auto& [name, value] : record.items()) {
      const bool of_rollout = name.starts_with("rollout/") && !name.starts_with("rollout/log_prob");
      const bool of_process =
          of_rollout || name.starts_with("time/") || name.starts_with("memory/") || absl::StrContains(name, "second");
      if (!of_process) kept[name] = value;
    }
    return kept;
  }
};

TEST_F(ShortRun, HasTheSameBitsHoweverManyEpisodesArePlayedAtTheSameTime) {
  for (const char* processes : {"1", "8"}) {
    const auto outcome = Run(Arguments(processes, kThreeTurns, {absl::StrCat("agent.processes=", processes)}));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  }
  ExpectSameBits("8", "1");
}

class KilledRun : public ShortRun, public testing::WithParamInterface<const char*> {};

TEST_P(KilledRun, GoesOnToTheSameBits) {
  const auto whole = Run(Arguments("whole", kThreeTurns));
  ASSERT_EQ(whole.exit_code, 0) << whole.output;

  std::vector<std::string> arguments = Arguments("killed", kThreeTurns);
  std::filesystem::create_directory(Once("killed") + "/hold");
  const pid_t run = harness_.Start(kOrchestrator, arguments);
  const std::string held = Once("killed") + "/held";
  const absl::Time deadline = absl::Now() + kLong;
  while (!std::filesystem::exists(held) && absl::Now() < deadline) {
    ASSERT_FALSE(harness_.Wait(run, absl::Milliseconds(50)).ended) << harness_.Output(run);
  }
  for (const pid_t process : harness_.Find(absl::StrCat(GetParam(), "/", GetParam()))) kill(process, SIGKILL);
  const auto killed = harness_.Wait(run, kLong);
  EXPECT_NE(killed.exit_code, 0) << killed.output;
  EXPECT_THAT(harness_.Survivors(absl::Seconds(20)), IsEmpty());
  EXPECT_EQ(Metrics("killed").size(), 2u) << killed.output;

  arguments.push_back("--set=train.load_checkpoint=true");
  const auto resumed = Run(arguments);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("going on after 2 of 3 steps"));
  ExpectSameBits("killed", "whole");
}

INSTANTIATE_TEST_SUITE_P(InTheMiddleOfAStep, KilledRun, testing::Values("orchestrator", "rollout"),
                         [](const auto& info) { return std::string(info.param); });

// Of the four rows, what goes wrong in their first samples, at the first try; and what their second ones ask for that
// they do not get. All others are well. What is well is worth 2 in odd samples and 1 in even ones.
constexpr char kFaults[] = R"py(
FAULTS = [["dies", "hangs", "prints nonsense", "never calls"],
          ["calls after the end of another", "fills the context", "takes too many turns", None]]


def play(episode):
    place = episode["episode"]
    fault = FAULTS[place["sample"]][place["row"]] if place["sample"] < len(FAULTS) else None
    if not is_first("-".join(str(place[name]) for name in ("step", "row", "sample"))):
        fault = None
    here = (episode["base_url"], episode["api_key"])
    if fault == "never calls":
        return {"reward": 0}
    ask = lambda base_url, api_key, text="?": call(base_url, api_key, [{"role": "user", "content": text}])[0]
    statuses = [ask(*here)]
    if fault == "dies":
        os.kill(os.getpid(), 9)
    if fault == "hangs":
        time.sleep(1000)
    if fault == "prints nonsense":
        return "reward: 0"
    if fault == "calls after the end of another":
        another = os.path.join(FOLDER, "another")
        if place["step"] > 0:
            statuses.append(ask(*json.load(open(another))))
        with open(another, "w") as file:
            json.dump(here, file)
    if fault == "fills the context":
        statuses.append(ask(*here, "?" * 100))
    if fault == "takes too many turns":
        statuses += [ask(*here) for _ in range(5)]
    return {"reward": 1 + place["sample"] % 2,
            "extra_logs": {str(status): statuses.count(status) for status in (200, 400, 404)}}


for line in sys.stdin:
    episode = json.loads(line)
    answer = play(episode)
    if isinstance(answer, dict):
        answer["id"] = episode["id"]  # else one that never calls would end the run
    print(json.dumps(answer), flush=True)
)py";

class FaultyRun : public ShortRun {
 protected:
  // The metrics of its steps.
  std::vector<json> Play(const std::vector<std::string>& fields) {
    std::vector<std::string> arguments = Arguments("faulty", kFaults, fields);
    // An episode that is well takes much less.
    for (const char* field : {"agent.timeout_seconds=15", "agent.processes=8", "train.max_steps=2"}) {
      arguments.push_back(absl::StrCat("--set=", field));
    }
    const auto outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(harness_.Survivors(absl::Seconds(5)), IsEmpty());
    std::vector<json> metrics = Metrics("faulty");
    EXPECT_EQ(metrics.size(), 2u) << outcome.output;
    return metrics;
  }
  // Each fault of a step once; `played` episodes are well in the end.
  static void ExpectCounted(const json& step, int played) {
    for (const char* failed : {"died", "timed_out", "nonsense", "no_call"}) {
      EXPECT_EQ(step.at(absl::StrCat("agent/failed_", failed)), 1) << failed;
    }
    for (const char* none : {"not_finite", "error", "no_token", "policy"}) {
      EXPECT_EQ(step.at(absl::StrCat("agent/failed_", none)), 0) << none;
    }
    // One beyond the context, two beyond agent.max_turns, which is 4; an episode that has ended counts nothing more.
    EXPECT_EQ(step.at("agent/refused"), 3.0 / played);
    EXPECT_EQ(step.at("agent/calls"), (played + 3.0) / played);
  }
};

TEST_F(FaultyRun, GoesOnThroughEpisodesThatFailOnce) {
  for (const json& step : Play({"agent.kept=true"})) {
    ExpectCounted(step, 16);
    EXPECT_EQ(step.at("agent/retries"), 4);
    EXPECT_EQ(step.at("agent/dropped"), 0);
    EXPECT_EQ(step.at("reward/mean"), 1.5);
  }
  const std::vector<json> events = ReadRecords(harness_.Path("faulty") + "/events.jsonl");
  EXPECT_EQ(
      std::ranges::count_if(
          events, [](const json& event) { return absl::StrContains(event.dump(), "4 episodes were played again"); }),
      2);
}

TEST_F(FaultyRun, LeavesOutEpisodesThatFailForGood) {
  for (const json& step : Play({"agent.kept=false", "agent.max_tries=1", "agent.on_error=drop"})) {
    ExpectCounted(step, 12);
    EXPECT_EQ(step.at("agent/retries"), 0);
    EXPECT_EQ(step.at("agent/dropped"), 4);
    EXPECT_NEAR(step.at("reward/mean").get<double>(), 5.0 / 3, 1e-6);  // none of a failed one, which would be 0 or 1
  }
}

}  // namespace
}  // namespace quartet
