#include "orchestrator/agents/episode_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "core/base/files/files.h"
#include "core/base/testing/file_limit.h"
#include "core/base/testing/scratch_folder.h"
#include "orchestrator/agents/testing/file_host.h"

#ifdef __SANITIZE_THREAD__
// Its detector of deadlocks has room for 64 locks of a thread; Arrow's allocator takes more of its own at each fork.
extern "C" const char* __tsan_default_options() { return "detect_deadlocks=0"; }  // NOLINT: the sanitizer's name
#endif

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Asks the policy twice.
constexpr char kAsks[] = "echo a >> $OPENAI_BASE_URL; echo bc >> $OPENAI_BASE_URL; ";
constexpr char kIsWorth1[] = "echo '{\"reward\": 1}'";

class EpisodeRunsTest : public ::testing::Test {
 protected:
  EpisodeRunsTest() {
    AgentConfig& agent = *config_.mutable_agent();
    agent.set_command(absl::StrCat(kAsks, kIsWorth1));
    agent.set_command_folder(scratch_.path());
    agent.set_processes(3);
    agent.set_max_turns(16);
    agent.set_timeout_seconds(60);
    agent.set_max_tries(3);
    agent.set_on_error("stop");
  }
  AgentConfig& agent() { return *config_.mutable_agent(); }

  // `rows` of two samples each.
  std::vector<EpisodeTask> Tasks(int rows) {
    std::vector<EpisodeTask> tasks;
    for (int row = 0; row < rows; ++row) {
      PromptRecord& prompt = prompts_.emplace_back();
      prompt.label = absl::StrCat(row);
      prompt.place = absl::StrCat("data.prompt_data: /rows.jsonl, line ", row + 1);
      for (int sample = 0; sample < 2; ++sample) {
        const EpisodePlace place = {.step = 5, .row = row, .sample = sample};
        tasks.push_back({&prompt, place, EpisodeSeed(17, place)});
      }
    }
    return tasks;
  }
  absl::Status Play(const std::vector<EpisodeTask>& tasks) {
    EpisodeRuns runs(config_, &host_);
    const absl::Status status = runs.Play(tasks, [this](PlayedEpisode episode) {
      metrics_.Add(episode);
      EXPECT_TRUE(played_.emplace(episode.task, std::move(episode)).second);
      return true;
    });
    EXPECT_EQ(host_.open(), 0);
    return status;
  }
  std::string Error(const std::vector<EpisodeTask>& tasks) { return std::string(Play(tasks).message()); }
  std::map<std::string, double> MetricsOfAll() const {
    Metrics metrics;
    metrics_.AddTo(&metrics);
    return {metrics.values().begin(), metrics.values().end()};
  }

  const ScratchFolder scratch_;
  std::deque<PromptRecord> prompts_;
  RunConfig config_;
  FileHost host_;
  std::map<size_t, PlayedEpisode> played_;
  EpisodeMetrics metrics_;
};

TEST_F(EpisodeRunsTest, GiveEachTaskItsEpisode) {
  agent().set_command(
      absl::StrCat("read -r line; ", kAsks, R"(echo "$line" | sed 's/.*"sample": \([0-9]*\).*/{"reward": \1}/')"));
  const std::vector<EpisodeTask> tasks = Tasks(4);
  ASSERT_EQ(Play(tasks), absl::OkStatus());
  ASSERT_EQ(played_.size(), 8);
  for (const auto& [task, episode] : played_) {
    EXPECT_EQ(episode.reward->value, tasks[task].place.sample);
    EXPECT_EQ(episode.record.response, "bc");
    EXPECT_THAT(episode.record.sequences.at(0).ids, ElementsAre(static_cast<int32_t>(tasks[task].seed), 1, 2));
    EXPECT_EQ(episode.dropped, absl::OkStatus());
  }
}

TEST_F(EpisodeRunsTest, AreTheSameHoweverManyProcessesThereAre) {
  agent().set_command(R"(python3 -c '
import json, sys
for line in sys.stdin:
    episode = json.loads(line)
    with open(episode["base_url"], "a") as calls:
        calls.write("x" * (1 + int(episode["label"])) + "\n")
    print(json.dumps({"reward": int(episode["label"]) + episode["episode"]["sample"] / 2}), flush=True)
')");
  const auto play = [this](int processes, bool kept) {
    agent().set_processes(processes);
    agent().set_kept(kept);
    played_.clear();
    EXPECT_EQ(Play(Tasks(3)), absl::OkStatus());
    std::map<size_t, std::pair<float, std::vector<int32_t>>> all;
    for (const auto& [task, e] : played_) all[task] = {e.reward->value, e.record.sequences.at(0).ids};
    return all;
  };
  const auto one = play(1, true);
  EXPECT_EQ(one.size(), 6);
  EXPECT_EQ(play(4, true), one);
  EXPECT_EQ(play(4, false), one);
}

TEST_F(EpisodeRunsTest, PlayAsManySideBySideAsThereAreProcesses) {
  // Each ends when three have begun.
  agent().set_command(absl::StrCat(kAsks, "touch $$; while [ $(ls | wc -l) -lt 3 ]; do sleep 0.01; done; ", kIsWorth1));
  EXPECT_EQ(Play(Tasks(2)), absl::OkStatus());
}

TEST_F(EpisodeRunsTest, TellOfEpisodesWhileOthersArePlayed) {
  agent().set_command(absl::StrCat(kAsks, "read -r line; case $line in *'\"label\": \"0\"'*) ;; *) ",
                                   "while [ ! -e go ]; do sleep 0.01; done;; esac; ", kIsWorth1));
  EpisodeRuns runs(config_, &host_);
  std::vector<size_t> order;
  ASSERT_EQ(runs.Play(Tasks(2),
                      [&](const PlayedEpisode& episode) {
                        order.push_back(episode.task);
                        if (order.size() == 2) scratch_.Write("go", "");
                        return true;
                      }),
            absl::OkStatus());
  ASSERT_EQ(order.size(), 4);
  EXPECT_LT(order[0], 2);
  EXPECT_LT(order[1], 2);
}

TEST_F(EpisodeRunsTest, PlayAnEpisodeThatFailsAgainWithTheSameSeed) {
  agent().set_command(absl::StrCat("[ -e tried ] || { touch tried; exit 1; }; ", kAsks, kIsWorth1));
  std::vector<EpisodeTask> tasks = Tasks(1);
  tasks.pop_back();
  ASSERT_EQ(Play(tasks), absl::OkStatus());
  EXPECT_THAT(host_.seeds(), ElementsAre(tasks[0].seed, tasks[0].seed));
  EXPECT_THAT(played_.at(0).failed, ElementsAre(EpisodeFailure::kDied));
  EXPECT_EQ(played_.at(0).reward->value, 1);
  EXPECT_EQ(MetricsOfAll().at("agent/retries"), 1);
  EXPECT_EQ(MetricsOfAll().at("agent/failed_died"), 1);
  EXPECT_EQ(MetricsOfAll().at("agent/dropped"), 0);
}

TEST_F(EpisodeRunsTest, StopTheRunWhereAnEpisodeFailsEachTime) {
  agent().set_command(absl::StrCat(kAsks, "echo It is out of disk. >&2; exit 3"));
  agent().set_processes(1);
  const absl::Status status = Play(Tasks(2));
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith("agent \""), HasSubstr("data.prompt_data: /rows.jsonl, line 1, sample 0 "),
                    HasSubstr("3 tries: it has ended: exit code 3"), HasSubstr("It is out of disk.")));
  EXPECT_EQ(host_.seeds().size(), 3);
}

TEST_F(EpisodeRunsTest, DropAnEpisodeThatFailsEachTimeWhereTheyAreTold) {
  agent().set_on_error("drop");
  agent().set_max_tries(2);
  agent().set_command(
      absl::StrCat("read -r line; ", kAsks, "case $line in *'\"label\": \"1\"'*) exit 3;; esac; ", kIsWorth1));
  ASSERT_EQ(Play(Tasks(2)), absl::OkStatus());
  EXPECT_EQ(played_.at(0).dropped, absl::OkStatus());
  EXPECT_THAT(std::string(played_.at(2).dropped.message()),
              AllOf(HasSubstr("line 2, sample 0"), HasSubstr("2 tries: it has ended: exit code 3")));
  EXPECT_EQ(MetricsOfAll().at("agent/dropped"), 2);
  EXPECT_EQ(MetricsOfAll().at("agent/retries"), 2);
  EXPECT_EQ(MetricsOfAll().at("agent/failed_died"), 4);
  EXPECT_EQ(MetricsOfAll().at("agent/calls"), 2) << "of those that were not dropped";
}

TEST_F(EpisodeRunsTest, FailWhereAnAgentHasNothingOfThePolicy) {
  agent().set_max_tries(1);
  agent().set_command(kIsWorth1);
  EXPECT_THAT(Error(Tasks(1)), HasSubstr("1 try: it has got no answer of the policy"));
  agent().set_command(absl::StrCat("echo refused >> $OPENAI_BASE_URL; ", kIsWorth1));
  EXPECT_THAT(Error(Tasks(1)), HasSubstr("1 of its requests were refused: \"the context is full\""));
  agent().set_command(absl::StrCat("echo >> $OPENAI_BASE_URL; ", kIsWorth1));
  EXPECT_THAT(Error(Tasks(1)), HasSubstr("no answer that it got of the policy has a token"));
}

TEST_F(EpisodeRunsTest, FailWithTheLastWordsOfTheAgentHoweverTheyFail) {
  agent().set_max_tries(1);
  for (const bool kept : {false, true}) {
    agent().set_kept(kept);
    for (const char* answer : {kIsWorth1, "echo '{\"error\": \"no browser\"}'", "echo nonsense"}) {
      agent().set_command(absl::StrCat("while read -r line; do echo Where is the policy? >&2; ", answer, "; done"));
      EXPECT_THAT(Error(Tasks(1)), HasSubstr("; it has written last:\nWhere is the policy?")) << answer;
    }
  }
}

TEST_F(EpisodeRunsTest, LeaveItToTheAgentWhatARefusalIsWorth) {
  agent().set_command(absl::StrCat(kAsks, "echo refused >> $OPENAI_BASE_URL; ", kIsWorth1));
  ASSERT_EQ(Play(Tasks(1)), absl::OkStatus());
  EXPECT_EQ(played_.at(0).reward->value, 1);
  EXPECT_EQ(MetricsOfAll().at("agent/refused"), 1);
}

TEST_F(EpisodeRunsTest, FailWhereThePolicyDoesWhateverTheAgentSays) {
  agent().set_on_error("drop");
  host_.SetChange(
      [](uint64_t, EpisodeRecord* record) { record->policy = absl::UnavailableError("the rollout is gone"); });
  const absl::Status status = Play(Tasks(1));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("3 tries: the rollout is gone"));
}

TEST_F(EpisodeRunsTest, SayWhatAnEpisodeHasWaitedFor) {
  agent().set_max_tries(1);
  agent().set_timeout_seconds(0.2);
  agent().set_command("sleep 1000");
  host_.SetChange([](uint64_t, EpisodeRecord* record) { record->no_room = "rollout.max_calls = 8 is reached"; });
  EXPECT_THAT(Error(Tasks(1)), AllOf(HasSubstr("it has not ended after 200ms"),
                                     HasSubstr("which had no room: rollout.max_calls = 8 is reached")));
}

TEST_F(EpisodeRunsTest, SayWhichRequestsWereRefusedWhereOneHasDied) {
  agent().set_command("echo refused >> $OPENAI_BASE_URL; exit 1");
  EXPECT_THAT(Error(Tasks(1)), AllOf(HasSubstr("it has ended: exit code 1"),
                                     HasSubstr("1 of its requests were refused: \"the context is full\"")));
}

TEST_F(EpisodeRunsTest, StartAgainAProcessThatHasAnsweredBeforeItAsked) {
  agent().set_command(R"(python3 -c '
import json, os, sys
is_first = not os.path.exists("started")
open("started", "w").close()
for line in sys.stdin:
    if not is_first:
        with open(json.loads(line)["base_url"], "a") as calls:
            calls.write("x\n")
    print(json.dumps({"reward": 1}), flush=True)
')");
  agent().set_kept(true);
  agent().set_processes(1);
  ASSERT_EQ(Play(Tasks(1)), absl::OkStatus());
  EXPECT_THAT(played_.at(0).failed, ElementsAre(EpisodeFailure::kNoCall));
  EXPECT_THAT(played_.at(0).why_failed, HasSubstr("it has got no answer of the policy"));
  EXPECT_THAT(played_.at(1).failed, ElementsAre());
}

// Asks but in the episodes of sample 1 of row 1.
constexpr char kAsksMostly[] = R"sh(while read -r line; do
  case $line in *'"row": 1, "sample": 1'*) ASK ;; *)
    echo a >> $(echo "$line" | sed 's/.*"base_url": "\([^"]*\)".*/\1/');; esac
  echo '{"reward": 1}'
done)sh";

TEST_F(EpisodeRunsTest, EndWhereAProcessThatDoesNotNameEpisodesAnswersOneBeforeItAsks) {
  agent().set_command(absl::StrReplaceAll(kAsksMostly, {{"ASK", ""}}));
  agent().set_kept(true);
  agent().set_processes(1);
  agent().set_on_error("drop");
  const absl::Status status = Play(Tasks(2));
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("line 2, sample 1 "), HasSubstr("it has got no answer of the policy"),
                    HasSubstr("earlier ones may have been to other episodes")));
}

TEST_F(EpisodeRunsTest, FailWhereAProcessThatDoesNotNameEpisodesIsRefusedWhatItAsks) {
  agent().set_command(absl::StrReplaceAll(
      kAsksMostly, {{"ASK", R"sh(echo refused >> $(echo "$line" | sed 's/.*"base_url": "\([^"]*\)".*/\1/'))sh"}}));
  agent().set_kept(true);
  agent().set_processes(1);
  agent().set_on_error("drop");
  ASSERT_EQ(Play(Tasks(2)), absl::OkStatus());
  EXPECT_THAT(played_.at(3).failed, Each(EpisodeFailure::kNoCall));
}

TEST_F(EpisodeRunsTest, TryAgainAfterAPauseWhereTheHostHasNoRoom) {
  std::optional<FileLimit> none(0);
  std::jthread room;
  host_.SetChange([&](uint64_t, EpisodeRecord*) {
    if (room.joinable()) return;
    room = std::jthread([&none] {
      absl::SleepFor(absl::Milliseconds(20));
      none.reset();
    });
  });
  std::vector<EpisodeTask> tasks = Tasks(1);
  tasks.pop_back();
  ASSERT_EQ(Play(tasks), absl::OkStatus());
  EXPECT_EQ(played_.at(0).failed.front(), EpisodeFailure::kDied);
  EXPECT_THAT(played_.at(0).why_failed, HasSubstr("Too many open files"));
  EXPECT_EQ(played_.at(0).reward->value, 1);
}

TEST_F(EpisodeRunsTest, LeaveTheRewardToOthersWhereThereAreSome) {
  agent().set_max_tries(1);
  agent().set_command(kAsks);
  EXPECT_THAT(Error(Tasks(1)), HasSubstr("it has written no answer"));
  RewardSource& source = *config_.mutable_reward()->add_source();
  source.set_rule("math");
  source.set_weight(0);
  EXPECT_THAT(Error(Tasks(1)), HasSubstr("no reward.source adds to the reward of its row"));
  source.set_weight(1);
  played_.clear();
  ASSERT_EQ(Play(Tasks(1)), absl::OkStatus());
  EXPECT_FALSE(played_.at(0).reward.has_value());
}

TEST_F(EpisodeRunsTest, StopAtOnceWhereTheAgentsFolderIsMissing) {
  agent().set_command_folder("/no/such/folder");
  agent().set_processes(1);
  EXPECT_TRUE(absl::IsInvalidArgument(Play(Tasks(3))));
  EXPECT_EQ(host_.seeds().size(), 1);
}

TEST_F(EpisodeRunsTest, GiveUpTheOthersWhereThatIsEnough) {
  // The first one ends.
  agent().set_command(absl::StrCat("read -r line; ", kAsks, "case $line in *'\"row\": 0, \"sample\": 0'*) ", kIsWorth1,
                                   ";; *) sleep 1000;; esac"));
  EpisodeRuns runs(config_, &host_);
  for (int step = 0; step < 2; ++step) {
    std::vector<size_t> played;
    ASSERT_EQ(runs.Play(Tasks(4),
                        [&played](const PlayedEpisode& episode) {
                          played.push_back(episode.task);
                          return false;
                        }),
              absl::OkStatus());
    EXPECT_THAT(played, ElementsAre(0));
    EXPECT_EQ(host_.open(), 0);
  }
}

TEST_F(EpisodeRunsTest, DoNotWaitForTheEndsOfProcessesThatAreGivenUp) {
  agent().set_command(absl::StrCat("read -r line; ", kAsks, "case $line in *'\"sample\": 0'*) ", kIsWorth1,
                                   ";; *) trap 'while [ ! -e told ]; do sleep 0.01; done; touch cleared; exit' TERM; ",
                                   "touch begun; while :; do sleep 0.01; done;; esac"));
  {
    EpisodeRuns runs(config_, &host_);
    ASSERT_EQ(runs.Play(Tasks(1),
                        [&](const PlayedEpisode&) {
                          while (!ReadFile(scratch_.path() + "/begun").ok()) absl::SleepFor(absl::Milliseconds(1));
                          return false;
                        }),
              absl::OkStatus());
    scratch_.Write("told", "");
  }
  EXPECT_TRUE(ReadFile(scratch_.path() + "/cleared").ok()) << "it was killed before";
}

TEST_F(EpisodeRunsTest, EndWhereAnEpisodeThatIsGivenUpSaysThatEarlierOnesMayBeWrong) {
  // In the second step sample 1 answers to another episode, once sample 0 has ended.
  agent().set_command(R"sh(while read -r line; do
    echo a >> $(echo "$line" | sed 's/.*"base_url": "\([^"]*\)".*/\1/')
    case $line in
      *'"step": 6, "row": 0, "sample": 1'*)
        while [ ! -e ended ]; do sleep 0.01; done
        echo '{"reward": 1, "id": "another"}';;
      *'"step": 5'*)
        touch $$
        while [ $(ls | wc -l) -lt 2 ]; do sleep 0.01; done
        echo '{"reward": 1}';;
      *) echo '{"reward": 1}';;
    esac
  done)sh");
  agent().set_kept(true);
  agent().set_processes(2);
  EpisodeRuns runs(config_, &host_);
  std::vector<EpisodeTask> tasks = Tasks(1);
  ASSERT_EQ(runs.Play(tasks, [](const PlayedEpisode&) { return true; }), absl::OkStatus());
  for (EpisodeTask& task : tasks) task.place.step = 6;
  const absl::Status status = runs.Play(tasks, [&](const PlayedEpisode& episode) {
    EXPECT_EQ(episode.task, 0);
    scratch_.Write("ended", "");
    while (host_.seeds().size() < 4 || host_.open() > 0) absl::SleepFor(absl::Milliseconds(1));
    return false;
  });
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is to another episode than"));
}

TEST_F(EpisodeRunsTest, EndWithAnErrorOfWhoIsTold) {
  EpisodeRuns runs(config_, &host_);
  EXPECT_EQ(runs.Play(Tasks(4), [](const PlayedEpisode&) { return absl::DataLossError("no more"); }),
            absl::DataLossError("no more"));
  EXPECT_EQ(host_.open(), 0);
}

TEST_F(EpisodeRunsTest, EndWhenTheRunDoes) {
  agent().set_command(absl::StrCat(kAsks, "touch begun; sleep 1000"));
  std::stop_source stop;
  std::jthread stopper([&] {
    while (!ReadFile(scratch_.path() + "/begun").ok()) std::this_thread::yield();
    stop.request_stop();
  });
  EpisodeRuns runs(config_, &host_);
  const auto done = [](const PlayedEpisode&) { return true; };
  EXPECT_TRUE(absl::IsCancelled(runs.Play(Tasks(4), done, stop.get_token())));
  EXPECT_EQ(host_.open(), 0);
}

TEST_F(EpisodeRunsTest, PlayNothingWhereThereIsNothing) {
  EXPECT_EQ(Play({}), absl::OkStatus());
  EXPECT_TRUE(MetricsOfAll().empty());
}

TEST_F(EpisodeRunsTest, CountWhatEpisodesAreMadeOf) {
  PlayedEpisode episode;
  episode.record.calls = 5;
  episode.record.sequences.resize(2);
  episode.record.sequences[0].turns = 2;
  episode.record.sequences[1].turns = 1;
  episode.record.policy_seconds = 1.5;
  episode.seconds = 4;
  metrics_.Add(episode);
  episode.record.calls = 1;
  metrics_.Add(episode);
  const std::map<std::string, double> metrics = MetricsOfAll();
  EXPECT_EQ(metrics.at("agent/turns"), 2);
  EXPECT_EQ(metrics.at("agent/calls"), 3);
  EXPECT_EQ(metrics.at("agent/branches"), 1);
  EXPECT_EQ(metrics.at("agent/seconds"), 4);
  EXPECT_EQ(metrics.at("agent/seconds_in_tools"), 2.5);
  for (const char* kind : {"died", "timed_out", "nonsense", "not_finite", "error", "no_call", "no_token", "policy"}) {
    EXPECT_EQ(metrics.at(absl::StrCat("agent/failed_", kind)), 0) << kind;
  }
}

TEST(AnEpisodesSeed, IsAnotherForEachStepRowAndSample) {
  std::set<uint64_t> seeds;
  for (const uint64_t step : {1, 2}) {
    for (int row = 0; row < 10; ++row) {
      for (int sample = 0; sample < 10; ++sample) seeds.insert(EpisodeSeed(step, {.row = row, .sample = sample}));
    }
  }
  EXPECT_EQ(seeds.size(), 200);
  EXPECT_EQ(EpisodeSeed(1, {.step = 1, .row = 2, .sample = 3}), EpisodeSeed(1, {.step = 9, .row = 2, .sample = 3}));
}

}  // namespace
}  // namespace quartet
