#include "orchestrator/agents/agent_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/files/files.h"
#include "core/base/testing/file_limit.h"
#include "core/base/testing/scratch_folder.h"

namespace quartet {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

AgentConfig AgentOf(const std::string& command, bool kept = false) {
  AgentConfig config;
  config.set_command(command);
  config.set_command_folder("/");
  config.set_kept(kept);
  config.set_timeout_seconds(60);
  return config;
}

const OpenEpisode kOpen = {.key = "key1", .base_url = "http://127.0.0.1:1/episodes/key1/v1", .api_key = "secret"};

// Of an agent that says what `command` prints.
AgentAnswer Played(const std::string& command, bool may_be_empty = false) {
  AgentProcess process(AgentOf(command));
  return process.Play("{}", kOpen, may_be_empty, {}).value();
}

// "died: why" of how a try has failed; "" where it has not.
std::string Failure(const AgentAnswer& answer) {
  if (!answer.failed.has_value()) return "";
  return absl::StrCat(std::string(NameOf(answer.failed->kind)), ": ", answer.failed->why,
                      answer.last_words.empty() ? "" : "; ", answer.last_words);
}

TEST(AnEpisodesLine, HasTheRowAndWhereThePolicyIs) {
  PromptRecord prompt;
  prompt.messages = R"([{"role":"user","content":"Two\nlines"}])";
  prompt.label = "4";
  prompt.source = "sums";
  prompt.place = "data.prompt_data: a.jsonl line 4";
  prompt.row = R"({"id": 12345678901234567890123, "tests": [1, 2]})";
  const std::string line = EpisodeLine(prompt, {.step = 7, .row = 3, .sample = 1}, kOpen);
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  EXPECT_THAT(line, HasSubstr("12345678901234567890123")) << "as it is written";
  json said = json::parse(line);
  said["row"].erase("id");
  EXPECT_EQ(said, json({{"messages", {{{"role", "user"}, {"content", "Two\nlines"}}}},
                        {"label", "4"},
                        {"source", "sums"},
                        {"row", {{"tests", {1, 2}}}},
                        {"place", "data.prompt_data: a.jsonl line 4"},
                        {"base_url", "http://127.0.0.1:1/episodes/key1/v1"},
                        {"api_key", "secret"},
                        {"episode", {{"step", 7}, {"row", 3}, {"sample", 1}}},
                        {"id", "key1"}}));
  EXPECT_EQ(json::parse(EpisodeLine({}, {.set = "held_out"}, kOpen))["episode"]["set"], "held_out");
}

TEST(AnAgentsAnswer, IsARewardWithWhatBelongsToIt) {
  const AgentAnswer answer =
      ReadAgentAnswer(R"({"reward": 0.5, "score": 1, "extra_logs": {"n": 2}, "id": "a"})", "a", false);
  ASSERT_EQ(Failure(answer), "");
  EXPECT_EQ(answer.reward->value, 0.5);
  EXPECT_EQ(answer.reward->score, 1);
  EXPECT_EQ(answer.reward->extra_logs.at("n"), 2);
}

TEST(AnAgentsAnswer, IsRefusedWhereItIsNone) {
  const auto failure = [](const std::string& line) { return Failure(ReadAgentAnswer(line, "a", false)); };
  EXPECT_THAT(failure("so good"),
              AllOf(StartsWith("nonsense: "), HasSubstr("so good"), HasSubstr("{\"reward\": number}")));
  EXPECT_THAT(failure("[1]"), StartsWith("nonsense: "));
  EXPECT_THAT(failure("{}"), AllOf(StartsWith("nonsense: "), HasSubstr("has no \"reward\"")));
  EXPECT_THAT(failure("{\"reward\": \"good\"}"), StartsWith("nonsense: "));
  EXPECT_THAT(failure("{\"reward\": 1, \"extra_logs\": 1}"), StartsWith("nonsense: "));
  EXPECT_THAT(failure("{\"reward\": 1, \"token_rewards\": [1]}"), StartsWith("nonsense: "));
  EXPECT_THAT(failure("{\"reward\": 1, \"id\": \"b\"}"), AllOf(StartsWith("nonsense: "), HasSubstr("another episode")));
  EXPECT_THAT(failure("{\"reward\": NaN}"), StartsWith("not_finite: \"reward\" is \"NaN\""));
  EXPECT_THAT(failure("{\"reward\": -Infinity}"), StartsWith("not_finite: "));
  EXPECT_THAT(failure("{\"reward\": 1e39}"), StartsWith("not_finite: "));
  EXPECT_THAT(failure("{\"reward\": 1, \"score\": NaN}"), StartsWith("not_finite: "));
  EXPECT_EQ(failure("{\"error\": \"the browser is gone\"}"), "error: it reports an error: the browser is gone");
  EXPECT_THAT(failure("{\"reward\": 1, \"sccore\": 1}"),
              AllOf(StartsWith("nonsense: "), HasSubstr("\"sccore\""), HasSubstr("allowed are reward, score, ")));
  EXPECT_THAT(failure(" "), AllOf(StartsWith("nonsense: "), HasSubstr("no answer")));
}

TEST(AnAgentsAnswer, MayBeEmptyWhereOthersGiveTheReward) {
  const AgentAnswer answer = ReadAgentAnswer("", "a", true);
  EXPECT_EQ(Failure(answer), "");
  EXPECT_FALSE(answer.reward.has_value());
  EXPECT_FALSE(answer.names_episode);
}

TEST(AnAgentsAnswer, MaySayNothingButItsEpisodeWhereOthersGiveTheReward) {
  const AgentAnswer answer = ReadAgentAnswer(R"({"id": "a"})", "a", true);
  EXPECT_EQ(Failure(answer), "");
  EXPECT_FALSE(answer.reward.has_value());
  EXPECT_TRUE(answer.names_episode);
  EXPECT_THAT(Failure(ReadAgentAnswer(R"({"id": "a"})", "a", false)), HasSubstr("has no \"reward\""));
  EXPECT_THAT(Failure(ReadAgentAnswer(R"({"id": "b"})", "a", true)), HasSubstr("is to another episode"));
  EXPECT_THAT(Failure(ReadAgentAnswer(R"({"id": "a", "score": 1})", "a", true)), StartsWith("nonsense: "));
  EXPECT_THAT(Failure(ReadAgentAnswer("{}", "a", true)), StartsWith("nonsense: "));
}

TEST(AnAgent, FindsThePolicyInItsEnvironmentAndItsInput) {
  setenv("no_proxy", "10.0.0.1", 1);
  const ScratchFolder scratch;
  const std::string file = scratch.path() + "/seen";
  AgentProcess process(AgentOf("{ cat; echo $OPENAI_BASE_URL $OPENAI_API_KEY $no_proxy $NO_PROXY; pwd; } > " + file +
                               "; echo A log line.; echo '{\"reward\": 1}'"),
                       false);
  const auto answer = process.Play("{\"line\": 1}", kOpen, false, {});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(Failure(*answer), "");
  EXPECT_EQ(answer->reward->value, 1);
  EXPECT_EQ(ReadFile(file).value(),
            "{\"line\": 1}\nhttp://127.0.0.1:1/episodes/key1/v1 secret 10.0.0.1,127.0.0.1,localhost "
            "127.0.0.1,localhost\n/\n");
  unsetenv("no_proxy");
}

TEST(AnAgent, NeedNotReadALongLine) {
  AgentProcess process(AgentOf("echo '{\"reward\": 1}'"));
  EXPECT_EQ(Failure(process.Play(std::string(8 << 20, 'x'), kOpen, false, {}).value()), "");
}

TEST(AnAgent, FailsWithItsLastWords) {
  EXPECT_THAT(Failure(Played("echo It is out of disk. >&2; exit 3")),
              AllOf(StartsWith("died: it has ended: exit code 3"), HasSubstr("It is out of disk.")));
  EXPECT_THAT(Failure(Played("echo '{\"reward\": 1}'; exit 1")), StartsWith("died: ")) << "though it has answered";
  EXPECT_THAT(Failure(Played("kill -9 $$")), StartsWith("died: it has ended: killed by SIGKILL"));
  EXPECT_THAT(Failure(Played("echo why >&2; echo Done.")), AllOf(StartsWith("nonsense: "), HasSubstr("why")));
  EXPECT_THAT(Failure(Played("yes | head -c 17000000")), StartsWith("nonsense: it has written more than"));
  EXPECT_EQ(Failure(Played("true", /*may_be_empty=*/true)), "");
}

TEST(AnAgent, IsKilledWithWhatItHasStartedWhenItsTimeIsUp) {
  const ScratchFolder scratch;
  const std::string pipe = scratch.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int fd = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  AgentConfig config = AgentOf("{ echo x; sleep 1000; } > " + pipe + " & wait");
  config.set_timeout_seconds(1);
  AgentProcess process(config);
  EXPECT_THAT(Failure(process.Play("{}", kOpen, false, {}).value()),
              StartsWith("timed_out: it has not ended after 1s (agent.timeout_seconds)"));
  process.Settle({});
  fcntl(fd, F_SETFL, 0);
  std::string written(100, ' ');
  EXPECT_EQ(read(fd, written.data(), written.size()), 2);
  EXPECT_EQ(read(fd, written.data(), written.size()), 0) << "nobody has it open any more";
  close(fd);
}

TEST(AnAgent, MayClearUpWhenItsTimeIsUp) {
  const ScratchFolder scratch;
  const std::string file = scratch.path() + "/file";
  AgentConfig config = AgentOf("trap 'echo cleared > " + file + "; exit' TERM; while :; do sleep 0.01; done");
  config.set_timeout_seconds(1);
  AgentProcess process(config);
  EXPECT_THAT(Failure(process.Play("{}", kOpen, false, {}).value()), StartsWith("timed_out: "));
  EXPECT_FALSE(ReadFile(file).ok()) << "its episode is closed before that is waited for";
  process.Settle({});
  EXPECT_EQ(ReadFile(file).value(), "cleared\n");
}

TEST(AnAgent, CannotBeExecuted) {
  EXPECT_THAT(Failure(Played("quartet-has-no-such-agent")),
              AllOf(StartsWith("died: it has ended: exit code 127"), HasSubstr("not found")));
  AgentConfig config = AgentOf("true");
  config.set_command_folder("/no/such/folder");
  AgentProcess nowhere(config);
  EXPECT_TRUE(absl::IsInvalidArgument(nowhere.Play("{}", kOpen, false, {}).status()));
}

TEST(AnAgent, ThatHasNoRoomNowIsTriedAgain) {
  for (const bool kept : {false, true}) {
    AgentProcess process(AgentOf(kept ? "cat" : "echo '{}'", kept));
    {
      const FileLimit none(0);
      EXPECT_THAT(Failure(process.Play("{\"reward\": 1}", kOpen, false, {}).value()),
                  AllOf(StartsWith("died: it could not be started: "), HasSubstr("Too many open files")));
    }
    EXPECT_TRUE(process.Play("{\"reward\": 1}", kOpen, false, {}).ok());
  }
}

TEST(AnAgent, EndsWhenItsRunDoes) {
  std::stop_source stop;
  AgentProcess process(AgentOf("sleep 1000"));
  std::jthread stopper([&stop] { stop.request_stop(); });
  EXPECT_TRUE(absl::IsCancelled(process.Play("{}", kOpen, false, stop.get_token()).status()));
}

// Answers each line with its process id, but for lines of other words.
constexpr char kLoop[] = R"(while read -r line; do case $line in
  empty) echo;;
  leave) exit 0;;
  die) echo Bye. >&2; exit 3;;
  twice) echo '{"reward": 1}'; echo '{"reward": 2}'; echo > $FILE;;
  "named twice") echo '{"reward": 1, "id": "key1"}'; echo '{"reward": 2, "id": "key1"}'; echo > $FILE;;
  named) echo '{"reward": 1, "id": "key1"}';;
  "no reward") echo '{"id": "key1"}';;
  "to another") echo '{"reward": 1, "id": "key2"}';;
  wrong) echo wrong;;
  error) echo '{"error": "it is late"}';;
  complain) echo No clock. >&2; echo '{"error": "it is late"}';;
  silent) echo > $FILE; sleep 1000;;
  late) echo > $FILE; while [ ! -e $FILE.go ]; do sleep 0.01; done; echo '{"reward": 2}';;
  *) echo "{\"reward\": 1, \"extra_logs\": {\"pid\": $$}}";;
esac; done)";

class AKeptAgent : public ::testing::Test {
 protected:
  AKeptAgent() : process_(AgentOf("FILE=" + file_ + "; " + kLoop, /*kept=*/true)) {}
  AgentAnswer Play(const std::string& line) { return process_.Play(line, kOpen, /*may_be_empty=*/true, {}).value(); }
  float Pid() { return Play("pid").reward->extra_logs.at("pid"); }
  void PlayAndGiveUp(const std::string& line) {
    std::stop_source stop;
    const std::jthread stopper([&] {
      while (!ReadFile(file_).ok()) absl::SleepFor(absl::Milliseconds(1));
      stop.request_stop();
    });
    EXPECT_TRUE(absl::IsCancelled(process_.Play(line, kOpen, false, stop.get_token()).status()));
  }

  const ScratchFolder scratch_;
  const std::string file_ = scratch_.path() + "/file";
  AgentProcess process_;
};

TEST_F(AKeptAgent, PlaysOneEpisodeAfterTheOther) {
  const float pid = Pid();
  EXPECT_EQ(Pid(), pid);
  const AgentAnswer empty = Play("empty");
  EXPECT_EQ(Failure(empty), "");
  EXPECT_FALSE(empty.reward.has_value());
  EXPECT_EQ(Failure(Play("error")), "error: it reports an error: it is late");
  EXPECT_EQ(Pid(), pid) << "which is well";
}

TEST_F(AKeptAgent, IsStartedAgainWhereItHasFailed) {
  float pid = Pid();
  EXPECT_THAT(Failure(Play("die")), AllOf(StartsWith("died: it has ended: exit code 3"), HasSubstr("Bye.")));
  EXPECT_NE(Pid(), pid);
  pid = Pid();
  EXPECT_THAT(Failure(Play("wrong")), StartsWith("nonsense: "));
  EXPECT_NE(Pid(), pid);
}

TEST_F(AKeptAgent, FailsWithItsWordsOfThisEpisode) {
  EXPECT_EQ(Failure(Play("complain")), "error: it reports an error: it is late; No clock.");
  EXPECT_EQ(Failure(Play("error")), "error: it reports an error: it is late");
}

TEST_F(AKeptAgent, IsToldToGoOn) {
  EXPECT_THAT(Failure(Play("leave")), AllOf(StartsWith("died: it has ended: exit code 0"), HasSubstr("agent.kept")));
}

TEST_F(AKeptAgent, EndsTheRunWhereItMayHaveAnsweredAnotherEpisode) {
  EXPECT_EQ(Play("twice").reward->value, 1);
  while (!ReadFile(file_).ok()) absl::SleepFor(absl::Milliseconds(1));
  const absl::Status status = process_.Play("pid", kOpen, false, {}).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("a line that nothing was asked for"), HasSubstr("one line an episode")));
  EXPECT_EQ(Failure(Play("pid")), "") << "of a new one";
}

TEST_F(AKeptAgent, FailsInOneEpisodeWhereItSaysWhichItAnswers) {
  EXPECT_EQ(Play("named twice").reward->value, 1);
  while (!ReadFile(file_).ok()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_THAT(Failure(Play("pid")), AllOf(StartsWith("nonsense: "), HasSubstr("one line an episode")));
  EXPECT_EQ(Failure(Play("pid")), "");
  EXPECT_THAT(process_.Play("to another", kOpen, false, {}).status().message(), HasSubstr("is to another episode"));
}

TEST_F(AKeptAgent, RepeatsTheIdInAllOfItsAnswersOrInNone) {
  for (const char* unnamed : {"pid", "empty"}) {
    EXPECT_EQ(Failure(Play("named")), "");
    EXPECT_EQ(Failure(Play("no reward")), "");
    EXPECT_THAT(Failure(Play("error")), StartsWith("error: ")) << "which is no word of an episode's worth";
    const AgentAnswer answer = Play(unnamed);
    EXPECT_THAT(Failure(answer),
                AllOf(StartsWith("nonsense: the answer "), HasSubstr("does not repeat the episode's")));
    EXPECT_FALSE(answer.reward.has_value());
    EXPECT_EQ(Failure(Play(unnamed)), "") << "of a new one";
    EXPECT_EQ(Failure(Play(unnamed)), "");
  }
}

TEST_F(AKeptAgent, EndsTheRunWhereItAnswersBeforeItAsksAndMayHaveAnsweredOthers) {
  const float pid = Pid();
  EXPECT_EQ(process_.Distrust("it has not asked", /*has_asked=*/false), absl::OkStatus()) << "it was the first";
  EXPECT_NE(Pid(), pid);
  Play("pid");
  EXPECT_EQ(process_.Distrust("it has no token", /*has_asked=*/true), absl::OkStatus());
  Play("pid");
  Play("pid");
  const absl::Status status = process_.Distrust("it has not asked", /*has_asked=*/false);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith("it has not asked. "), HasSubstr("earlier ones may have been to other episodes")));
  Play("named");
  Play("named");
  EXPECT_EQ(process_.Distrust("it has not asked", /*has_asked=*/false), absl::OkStatus()) << "it has said to which";
}

TEST_F(AKeptAgent, PlaysOnWhereItAnswersSoonAfterItIsGivenUp) {
  const float pid = Pid();
  PlayAndGiveUp("late");
  scratch_.Write("file.go", "");
  const AgentAnswer next = Play("pid");
  EXPECT_EQ(next.reward->value, 1) << "its own";
  EXPECT_EQ(next.reward->extra_logs.at("pid"), pid);
}

TEST_F(AKeptAgent, IsStartedAgainWhereItDoesNotAnswerSoonAfterItIsGivenUp) {
  const float pid = Pid();
  PlayAndGiveUp("silent");
  EXPECT_NE(Pid(), pid);
}

TEST(AKeptAgentOfARun, ReadsThatItsInputHasEnded) {
  const ScratchFolder scratch;
  const std::string file = scratch.path() + "/file";
  {
    AgentProcess process(AgentOf(absl::StrCat(kLoop, "; echo cleared > ", file), /*kept=*/true));
    EXPECT_EQ(Failure(process.Play("pid", kOpen, false, {}).value()), "");
  }
  EXPECT_EQ(ReadFile(file).value(), "cleared\n");
}

// Of the client that it uses, a policy whose episodes are all closed.
constexpr char kClosed[] = R"(
class APIStatusError(Exception): pass
class OpenAI:
    def __init__(self, base_url, api_key): self.chat = self.completions = self
    def create(self, model, messages): raise APIStatusError("there is no such episode here")
)";

TEST(TheAgentWithACalculator, PlaysOnWhereItsEpisodeIsGivenUp) {
  const ScratchFolder scratch;
  scratch.Write("openai.py", kClosed);
  AgentConfig config =
      AgentOf(absl::StrCat("PYTHONPATH=", scratch.path(), " exec python3 examples/agents/calculator.py"), true);
  config.set_command_folder(std::filesystem::current_path());
  AgentProcess process(config);
  const std::string line = EpisodeLine({}, {}, kOpen);
  EXPECT_EQ(Failure(process.Play(line, kOpen, false, {}).value()),
            "error: it reports an error: there is no such episode here");
}

TEST_F(AKeptAgent, IsToldToWriteItsLineAtOnce) {
  AgentConfig config = AgentOf(kLoop, /*kept=*/true);
  config.set_timeout_seconds(0.2);
  AgentProcess process(config);
  EXPECT_THAT(Failure(process.Play("silent", kOpen, false, {}).value()),
              AllOf(StartsWith("timed_out: "), HasSubstr("flush")));
}

TEST(TryingAnAgent, MakesRoomForItsProcesses) {
  const FileLimit few(256);
  AgentConfig config = AgentOf("cat", true);
  config.set_processes(64);
  ASSERT_EQ(TryAgent(config), absl::OkStatus());
  rlimit raised;
  getrlimit(RLIMIT_NOFILE, &raised);
  EXPECT_GE(raised.rlim_cur, 64 * 10 + 128);
}

TEST(TryingAnAgentDeathTest, RefusesMoreProcessesThanThereIsRoomFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto try_agent = [] {
    const rlimit hard = {200, 328};
    setrlimit(RLIMIT_NOFILE, &hard);
    AgentConfig config = AgentOf("cat", true);
    config.set_processes(21);
    std::cerr << TryAgent(config).message();
    config.set_processes(20);
    std::_Exit(TryAgent(config).ok() ? 0 : 1);
  };
  EXPECT_EXIT(try_agent(), ::testing::ExitedWithCode(0),
              HasSubstr("agent.processes: 21 is not allowed; it must be at most 20: each takes 10 open files, and this "
                        "process may have 328"));
}

TEST(TryingAnAgent, FindsWhatCannotRun) {
  const auto wrong = [](const std::string& command, bool kept) {
    return std::string(TryAgent(AgentOf(command, kept)).message());
  };
  EXPECT_EQ(wrong("cat", true), "");
  EXPECT_EQ(wrong("exit 1", false), "") << "it is not started";
  EXPECT_THAT(wrong("if", false), AllOf(StartsWith("agent.command \"if\": "), HasSubstr("exit code 2")));
  EXPECT_THAT(wrong("quartet-has-no-such-agent", true), AllOf(HasSubstr("exit code 127"), HasSubstr("not found")));
  EXPECT_THAT(wrong("echo Hello.", true), HasSubstr("it has written \"Hello.\""));
  AgentConfig nowhere = AgentOf("cat");
  nowhere.set_command_folder("/no/such/folder");
  EXPECT_THAT(std::string(TryAgent(nowhere).message()), HasSubstr("/no/such/folder"));
}

}  // namespace
}  // namespace quartet
