// A whole run over real processes: what it writes, where it listens, how it ends.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/files/files.h"
#include "core/config/run_config.h"
#include "core/http/testing/http_client.h"
#include "core/service/ranks/addresses/port_reservation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::vector<std::string> With(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Starts a run that would go on for ever and waits for its first step.
pid_t StartEndlessRun(ProcessHarness& harness, TinyRun* run, const std::vector<std::string>& overrides = {}) {
  *run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 1, With(overrides, {"train.max_steps=100000"}));
  const pid_t pid = harness.Start(kOrchestrator, With(run->arguments, {"--launch"}));
  EXPECT_FALSE(WaitForRecords(harness, pid, run->run_dir + "/metrics.jsonl", 1, absl::Seconds(60)).empty())
      << harness.Output(pid);
  return pid;
}

TEST(Run, WritesItsFolder) {
  ProcessHarness harness;
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 2, {"train.save_steps=2"});
  const auto outcome = harness.Run(kOrchestrator, With(run.arguments, {"--launch"}), absl::Seconds(120));
  ASSERT_TRUE(outcome.ended);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("first prompt, as the model reads it: 4 tokens\n  \"0+1=\"\n  ids 3 13 4 14\n"));
  EXPECT_THAT(outcome.output, HasSubstr("micro-batches: up to 4,096 tokens (170 sequences of 24) a rank; set "));

  const auto metrics = ReadRecords(run.run_dir + "/metrics.jsonl");
  ASSERT_EQ(metrics.size(), 3u);
  for (const auto& record : metrics) {
    for (const char* name : {"step",
                             "policy_version",
                             "reward/mean",
                             "reward/std",
                             "kl/mean",
                             "response_length/mean",
                             "rollout/log_prob_diff_mean",
                             "rollout/log_prob_diff_p99",
                             "rollout/log_prob_diff_max",
                             "policy/loss",
                             "policy/clip_fraction",
                             "policy/entropy",
                             "policy/grad_norm",
                             "policy/tokens_per_second",
                             "policy/micro_batches",
                             "policy/balance",
                             "critic/tokens_per_second",
                             "critic/loss",
                             "critic/explained_variance",
                             "time/generate",
                             "time/score",
                             "time/values",
                             "time/policy_update",
                             "time/critic_update",
                             "time/weight_sync",
                             "time/step",
                             "tokens/generated"}) {
      EXPECT_TRUE(record.contains(name)) << name;
    }
    EXPECT_TRUE(record.contains("memory/policy_trainer/gathered"));
    // One forward for training and rollout: in fp32 they differ by rounding alone.
    EXPECT_LT(record.at("rollout/log_prob_diff_max").get<double>(), 1e-4);
  }
  // The policy is the reference before its first update.
  EXPECT_NEAR(metrics[0].at("kl/mean").get<double>(), 0, 1e-5);
  EXPECT_NE(metrics[2].at("kl/mean").get<double>(), 0);

  EXPECT_FALSE(ReadRecords(run.run_dir + "/samples.jsonl").empty());
  EXPECT_TRUE(std::filesystem::exists(run.run_dir + "/run.textproto"));
  EXPECT_TRUE(std::filesystem::exists(run.run_dir + "/checkpoints/step_2/policy/model.safetensors"));
  for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"}) {
    EXPECT_TRUE(std::filesystem::exists(absl::StrCat(run.run_dir, "/checkpoints/latest/policy/", file))) << file;
  }
  for (const std::string& service : kServiceNames) {
    EXPECT_TRUE(std::filesystem::exists(absl::StrCat(run.run_dir, "/logs/", service, ".log"))) << service;
  }
  EXPECT_THAT(harness.Survivors(absl::Seconds(5)), IsEmpty());

  // The resolved configuration starts the same run again.
  const auto again =
      harness.Run(kOrchestrator,
                  {"--launch", "--config=" + run.run_dir + "/run.textproto", "--set=run_dir=" + harness.Path("again")},
                  absl::Seconds(120));
  ASSERT_EQ(again.exit_code, 0) << again.output;
  // Two ranks, synchronous, fp32: the first step does not depend on when things happened.
  EXPECT_EQ(ReadRecords(harness.Path("again") + "/metrics.jsonl")[0].at("reward/mean"), metrics[0].at("reward/mean"));
}

TEST(Run, IsLookedAtBeforeModelsAreLoaded) {
  ProcessHarness harness;
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 2);
  // Of services that run already, or should.
  const auto check = [&](const std::string& rollout) {
    std::vector<std::string> arguments =
        With(run.arguments, {"--services_run", "--set=run_dir=" + harness.Path("beside")});
    for (const std::string& service : kServiceNames) {
      arguments.push_back(
          absl::StrCat("--set=services.", service, ".listen=", service == "rollout" ? rollout : "127.0.0.1:1"));
    }
    return harness.Start("orchestrator/check", arguments);
  };
  const pid_t waits = check("127.0.0.1:1");  // says so after seconds

  const auto outcome = harness.Run("orchestrator/check", run.arguments, absl::Seconds(120));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(
      outcome.output,
      AllOf(ContainsRegex("ranks 2 of the critic_trainer, 2 of the policy_trainer, 2 of the rollout, 2 of the scorer"),
            ContainsRegex("policy_trainer: all_gather over 2 ranks [0-9.e+]+ Gb/s a rank, barrier"),
            ContainsRegex("weight transfer: [0-9.e+]+ Gb/s"), HasSubstr("checked: ")));
  EXPECT_FALSE(std::filesystem::exists(run.run_dir)) << "it leaves nothing";

  // At this place no service can be.
  const auto unplaced = harness.Wait(check("127.0.0.1:0"), absl::Seconds(60));
  EXPECT_EQ(unplaced.exit_code, 2);
  EXPECT_THAT(unplaced.output, HasSubstr("services.rollout.listen is \"127.0.0.1:0\"; with --services_run"));

  EXPECT_TRUE(harness.WaitForOutput(waits, "waiting for the rollout at 127.0.0.1:1", absl::Seconds(60)))
      << harness.Output(waits);
  EXPECT_EQ(kill(waits, SIGINT), 0);
  EXPECT_EQ(harness.Wait(waits, absl::Seconds(30)).exit_code, 130);
  EXPECT_THAT(harness.Survivors(absl::Seconds(5)), IsEmpty());

  // A service with a model is not one to check.
  const auto [pid, address] = harness.StartService("rollout", run.arguments);
  ASSERT_FALSE(address.empty()) << harness.Output(pid);
  const auto wrong = harness.Wait(check(address), absl::Seconds(120));
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.output, HasSubstr("it was started without --check"));
}

TEST(Run, LeavesTheTimelineOfStepsOverAllItsProcesses) {
  ProcessHarness harness;
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 2, {"train.trace_steps=1-2"});
  const auto outcome = harness.Run(kOrchestrator, With(run.arguments, {"--launch"}), absl::Seconds(120));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(run.run_dir + "/trace_1-2.json"));
  EXPECT_THAT(outcome.output, testing::Not(HasSubstr("warning: the trace")));
  std::ifstream file(run.run_dir + "/trace_1-2.json");
  const nlohmann::json events = nlohmann::json::parse(file);

  std::map<int, std::string> processes;
  std::map<std::string, std::string> lanes;
  const auto lane_of = [](const nlohmann::json& event) {
    return absl::StrCat(event["pid"].get<int>(), ":", event["tid"].get<int>());
  };
  for (const auto& event : events) {
    if (event["name"] == "process_name") processes[event["pid"]] = event["args"]["name"];
    if (event["name"] == "thread_name") lanes[lane_of(event)] = event["args"]["name"];
  }
  std::map<std::string, std::vector<std::string>> spans;  // by process and lane
  double first = std::numeric_limits<double>::infinity(), last = 0;
  for (const auto& event : events) {
    if (event["ph"] != "X") continue;
    spans[absl::StrCat(processes.at(event["pid"]), "/", lanes.at(lane_of(event)))].push_back(event["name"]);
    first = std::min(first, event["ts"].get<double>());
    last = std::max(last, event["ts"].get<double>() + event["dur"].get<double>());
  }
  EXPECT_GE(first, 0);
  EXPECT_LT(last, 60e6);
  EXPECT_THAT(spans["orchestrator/main"], AllOf(Contains("step 1"), Contains("step 2"), Contains("weight sync"),
                                                Contains("policy and critic update")));
  EXPECT_THAT(spans["orchestrator/calls of policy_trainer"], AllOf(Contains("LogProbs"), Contains("Update")));
  EXPECT_THAT(spans["orchestrator/calls of scorer"], AllOf(Contains("Score"), Contains("ReferenceLogProbs")));
  for (const char* rank : {"rank 0", "rank 1"}) {
    EXPECT_THAT(spans[absl::StrCat("rollout/", rank)], AllOf(Contains("sample"), Contains(HasSubstr("engine step"))));
    EXPECT_THAT(spans[absl::StrCat("rollout/", rank, " weights")], Contains("pull weights"));
    for (const char* trainer : {"policy_trainer/", "critic_trainer/"}) {
      EXPECT_THAT(spans[absl::StrCat(trainer, rank)],
                  AllOf(Contains("forward block 0"), Contains("backward block 1"), Contains("optimizer")));
    }
    EXPECT_THAT(spans[absl::StrCat("scorer/", rank)], Contains("forward block 0"));
  }
}

TEST(Run, ListensOnLoopbackAlone) {
  ProcessHarness harness;
  TinyRun run;
  StartEndlessRun(harness, &run, {kTwoPolicyRanks});
  const std::vector<ListeningSocket> sockets = harness.ListeningSockets();
  // At least one gRPC server a rank.
  EXPECT_GE(sockets.size(), 5u);
  for (const ListeningSocket& socket : sockets) {
    EXPECT_TRUE(socket.address == "127.0.0.1" || socket.address == "::1" || socket.address == "::ffff:127.0.0.1")
        << ProcessHarness::CommandLine(socket.pid) << " listens on " << socket.address << ":" << socket.port;
  }
}

TEST(Run, EndsAtCtrlCAndLeavesNothing) {
  ProcessHarness harness;
  TinyRun run;
  const pid_t pid = StartEndlessRun(harness, &run, {kTwoPolicyRanks});
  kill(pid, SIGINT);
  const auto outcome = harness.Wait(pid, absl::Seconds(30));
  EXPECT_TRUE(outcome.ended) << outcome.output;
  EXPECT_EQ(outcome.exit_code, 130) << outcome.output;
  // Nothing is lost, though no field asks for checkpoints.
  const size_t steps = ReadRecords(run.run_dir + "/metrics.jsonl").size();
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("checkpoints: at the end alone (train.save_steps is 0); Ctrl-C ends"),
                                    HasSubstr(absl::StrCat("To continue after step ", steps))));
  EXPECT_THAT(harness.Survivors(absl::Seconds(5)), IsEmpty());
}

TEST(Run, EndsAtASecondCtrlCWhateverItWaitsFor) {
  ProcessHarness harness;
  TinyRun run;
  const pid_t pid = StartEndlessRun(harness, &run);
  // A service that does not end when it is asked to.
  for (const pid_t launcher : harness.Find("scorer/scorer")) kill(launcher, SIGSTOP);
  kill(pid, SIGINT);
  for (const char* said : {"a second one ends it now", "one more ends at once"}) {
    ASSERT_TRUE(harness.WaitForOutput(pid, said, absl::Seconds(10))) << harness.Output(pid);
    kill(pid, SIGINT);
  }
  const auto outcome = harness.Wait(pid, absl::Seconds(10));
  EXPECT_EQ(outcome.exit_code, 130) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("ended at once by a second signal"));
}

// The line below the one that begins with `text`, without its indent.
std::string CommandBelow(const std::string& text, const std::string& output) {
  const size_t at = output.find(text);
  EXPECT_NE(at, std::string::npos) << output;
  if (at == std::string::npos) return "false";
  const size_t line = output.find("\n  ", at) + 3;
  return output.substr(line, output.find('\n', line) - line);
}

// Checkpoints that hold no more than models.
TEST(Run, PrintsACommandThatRunsWhereNothingCanBeContinuedFrom) {
  ProcessHarness harness;
  TinyRun run;
  const pid_t pid = StartEndlessRun(harness, &run, {"train.save_steps=1", "train.save_optimizer=false"});
  kill(pid, SIGINT);
  const auto outcome = harness.Wait(pid, absl::Seconds(10));
  EXPECT_THAT(outcome.output, HasSubstr("train.save_optimizer is false"));
  const std::string command = CommandBelow("No checkpoint of this run can be continued from", outcome.output);
  const auto anew = harness.Run("/bin/sh", {"-c", command + " --set=train.max_steps=1"}, absl::Seconds(60));
  EXPECT_EQ(anew.exit_code, 0) << anew.output;
  EXPECT_EQ(ReadRecords(run.run_dir + "_2/metrics.jsonl").size(), 1u);
}

// The command that a run prints when it is stopped continues it.
TEST(Run, PrintsTheCommandThatContinuesIt) {
  ProcessHarness harness;
  TinyRun run;
  const pid_t pid = StartEndlessRun(harness, &run, {"train.save_steps=1"});
  kill(pid, SIGINT);
  const auto outcome = harness.Wait(pid, absl::Seconds(10));
  EXPECT_EQ(outcome.exit_code, 130) << outcome.output;
  const std::string command = CommandBelow("To continue after step ", outcome.output);
  EXPECT_THAT(command, AllOf(HasSubstr("--launch"), HasSubstr("--set=run_dir=" + run.run_dir),
                             HasSubstr("--set=train.load_checkpoint=true")));
  const size_t steps = ReadRecords(run.run_dir + "/metrics.jsonl").size();
  const auto continued =
      harness.Run("/bin/sh", {"-c", absl::StrCat(command, " --set=train.max_steps=", steps + 1)}, absl::Seconds(60));
  EXPECT_EQ(continued.exit_code, 0) << continued.output;
  EXPECT_EQ(ReadRecords(run.run_dir + "/metrics.jsonl").size(), steps + 1);
}

TEST(Run, LeavesNothingWhenTheOrchestratorIsKilled) {
  ProcessHarness harness;
  TinyRun run;
  const pid_t pid = StartEndlessRun(harness, &run, {kTwoPolicyRanks});
  kill(pid, SIGKILL);
  EXPECT_TRUE(harness.Wait(pid, absl::Seconds(5)).ended);
  EXPECT_THAT(harness.Survivors(absl::Seconds(5)), IsEmpty());
}

TEST(Run, DoesNotWaitForAnswersToOthers) {
  ProcessHarness harness;
  TinyRun run;
  const pid_t pid = StartEndlessRun(harness, &run,
                                    {"services.rollout.ranks=2", "rollout.http.listen=127.0.0.1:0",
                                     "rollout.max_model_len=256", "rollout.max_num_seqs=8"});
  const std::string console = harness.Output(pid);
  const std::string kPlace = "the policy answers HTTP at http://127.0.0.1:";
  const size_t at = console.find(kPlace);
  ASSERT_NE(at, std::string::npos) << console;
  EXPECT_THAT(console, HasSubstr(absl::StrCat("as model \"", run.run_dir.substr(run.run_dir.rfind('/') + 1), "\"")));
  const int port = std::atoi(console.c_str() + at + kPlace.size());
  const auto metric = [&](const std::string& name) {
    const std::string body = HttpAsk(port, "GET", "/metrics").body;
    const size_t line = body.find("\nquartet_" + name + "{");
    return line == std::string::npos ? NAN : std::atof(body.c_str() + body.find(' ', line));
  };

  // Sixteen answers at a time: all of them would take minutes.
  HttpClient client(port);
  client.Ask("POST", "/v1/completions",
             nlohmann::json{{"prompt", "a"}, {"n", 20000}, {"max_tokens", 250}, {"ignore_eos", true}, {"stream", true}}
                 .dump());
  ASSERT_EQ(client.ReadHead().status, 200);
  ASSERT_TRUE(client.ReadChunk().has_value());
  const double version = metric("policy_version");
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (absl::Now() < deadline && !(metric("policy_version") >= version + 3)) absl::SleepFor(absl::Milliseconds(100));
  EXPECT_GE(metric("policy_version"), version + 3);
  // More than the run's own.
  EXPECT_GT(metric("num_requests_waiting"), 1000);
  EXPECT_TRUE(client.ReadChunk().has_value());
}

// The orchestrator against services that somebody else started, each by itself.
TEST(Run, UsesServicesThatRunAlready) {
  ProcessHarness harness;
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 1, {"rollout.zero_stage=3"});
  const ServicesByHand by_hand = StartServices(harness, With(run.arguments, {"--ranks=2"}));
  const auto outcome = harness.Run(kOrchestrator, With(run.arguments, by_hand.arguments()), absl::Seconds(120));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(ReadRecords(run.run_dir + "/metrics.jsonl").size(), 3u);
  // They outlive the run, and end cleanly when told to.
  for (const auto& [name, service] : by_hand.services) {
    EXPECT_EQ(kill(service.pid, SIGTERM), 0);
    const auto ended = harness.Wait(service.pid, absl::Seconds(10));
    EXPECT_TRUE(ended.ended);
    EXPECT_EQ(ended.exit_code, 0) << ended.output;
  }
  EXPECT_THAT(harness.Survivors(absl::Seconds(5)), IsEmpty());
}

// Services that were started by hand and are started again, and the orchestrator that is to use them.
class ReplaceableServices {
 public:
  ReplaceableServices(ProcessHarness& harness, const TinyRun& run)
      : harness_(harness), run_(run), by_hand_(StartServices(harness, run.arguments)) {}

  // Ends a service, and starts it with more arguments.
  void Replace(const std::string& name, const std::vector<std::string>& more) {
    ProcessHarness::Service& service = by_hand_.services.at(name);
    EXPECT_EQ(kill(service.pid, SIGTERM), 0);
    EXPECT_TRUE(harness_.Wait(service.pid, absl::Seconds(10)).ended);
    service = harness_.StartService(name, With(run_.arguments, more));
    ASSERT_FALSE(service.address.empty()) << harness_.Output(service.pid);
  }
  std::string Output(const std::string& name) const { return harness_.Output(by_hand_.services.at(name).pid); }
  std::string Place(const std::string& name) const { return name + " at " + by_hand_.services.at(name).address; }
  ProcessHarness::Outcome Run(const std::vector<std::string>& more,
                              const std::map<std::string, std::string>& environment = {}) {
    return harness_.Run(kOrchestrator, With(With(run_.arguments, more), by_hand_.arguments()), absl::Seconds(120),
                        environment);
  }

 private:
  ProcessHarness& harness_;
  const TinyRun& run_;
  ServicesByHand by_hand_;
};

// The names and sizes of all files.
std::map<std::string, uintmax_t> FilesOf(const std::string& folder) {
  std::map<std::string, uintmax_t> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files[entry.path()] = entry.file_size();
  }
  return files;
}

// A call that the service gives up is no Ctrl-C of the run, which exit code 130 would say.
TEST(Run, FailsWhereAServiceIsToldToEnd) {
  ProcessHarness harness;
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 1, {"train.max_steps=100000"});
  for (const std::string stopped : {"critic_trainer", "rollout"}) {
    const std::vector<std::string> arguments = With(run.arguments, {"--set=run_dir=" + harness.Path("run_" + stopped)});
    const ServicesByHand by_hand = StartServices(harness, arguments);
    const pid_t orchestrator = harness.Start(kOrchestrator, With(arguments, by_hand.arguments()));
    WaitForRecords(harness, orchestrator, harness.Path("run_" + stopped) + "/metrics.jsonl", 2, absl::Seconds(60));
    EXPECT_EQ(kill(by_hand.services.at(stopped).pid, SIGTERM), 0);
    const auto outcome = harness.Wait(orchestrator, absl::Seconds(60));
    EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(stopped + " at "));
    for (const auto& [name, service] : by_hand.services) kill(service.pid, SIGTERM);
    EXPECT_THAT(harness.Survivors(absl::Seconds(10)), IsEmpty());
  }
}

TEST(Run, ANewOneOnTheServicesOfAnotherBeginsAnewOrNotAtAll) {
  ProcessHarness harness;
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 1);
  ReplaceableServices services(harness, run);
  const auto first = services.Run({});
  ASSERT_EQ(first.exit_code, 0) << first.output;
  const auto files = FilesOf(run.run_dir);
  const auto metrics = ReadRecords(run.run_dir + "/metrics.jsonl");

  const std::string second = harness.Path("second");
  const std::vector<std::string> change = {"--set=run_dir=" + second};
  const std::string differs = absl::StrCat(": run_dir is \"", run.run_dir, "\" there and \"", second, "\" here");
  const auto refused = services.Run(change);
  EXPECT_EQ(refused.exit_code, 1) << refused.output;
  EXPECT_THAT(refused.output,
              AllOf(HasSubstr(services.Place("policy_trainer") + differs),
                    HasSubstr(services.Place("critic_trainer") + differs), HasSubstr("End them and start them again")));
  EXPECT_FALSE(std::filesystem::exists(second + "/checkpoints"));

  // What the message says helps.
  for (const char* trainer : {"policy_trainer", "critic_trainer"}) services.Replace(trainer, change);
  const auto anew = services.Run(change);
  ASSERT_EQ(anew.exit_code, 0) << anew.output;
  const auto new_metrics = ReadRecords(second + "/metrics.jsonl");
  ASSERT_EQ(new_metrics.size(), metrics.size());
  for (size_t step = 0; step < metrics.size(); ++step) {
    for (const char* name : {"reward/mean", "policy/loss", "policy/grad_norm", "critic/loss", "kl/mean"}) {
      EXPECT_NEAR(new_metrics[step].at(name).get<double>(), metrics[step].at(name).get<double>(), 1e-5) << name;
    }
  }
  EXPECT_EQ(FilesOf(run.run_dir), files);
}

TEST(Run, ATrainerThatIsRestartedByHandFindsWhereTheRunGoesOn) {
  ProcessHarness harness;
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 1, {"train.save_steps=1"});
  ReplaceableServices services(harness, run);
  const auto first = services.Run({}, {{"QUARTET_FAIL_POINTS", "orchestrator.checkpoint.saved=error@3"}});
  EXPECT_EQ(first.exit_code, 1) << first.output;
  const std::vector<std::string> change = {"--set=train.load_checkpoint=true"};
  EXPECT_THAT(first.output, ContainsRegex("To continue after step 2, start the trainers again with " + change[0] +
                                          ", then:\n  .*" + change[0] + "\n"));
  services.Replace("policy_trainer", {});
  const auto refused = services.Run(change);
  EXPECT_EQ(refused.exit_code, 1) << refused.output;
  EXPECT_THAT(refused.output, AllOf(HasSubstr("the policy_trainer has made 0 optimizer steps, the checkpoint 2"),
                                    HasSubstr("start it again with train.load_checkpoint set")));
  // What the first run has said helps.
  for (const std::string trainer : {"policy", "critic"}) {
    services.Replace(trainer + "_trainer", change);
    EXPECT_THAT(services.Output(trainer + "_trainer"),
                HasSubstr("going on from " + run.run_dir + "/checkpoints/step_2/" + trainer + "_state"));
  }
  const auto resumed = services.Run(change);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("going on after 2 of 3 steps"));
  EXPECT_EQ(ReadRecords(run.run_dir + "/metrics.jsonl").size(), 3u);
}

TEST(Run, LaunchedServicesListenWhereTheyAreToldTo) {
  ProcessHarness harness;
  const std::string address = PortReservation::Make({.host = "127.0.0.1", .port = 0}).value().address().ToString();
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 1,
                                   {"train.max_steps=1", "services.scorer.listen=" + address});
  const auto outcome = harness.Run(kOrchestrator, With(run.arguments, {"--launch"}), absl::Seconds(120));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("scorer " + address));
}

// A cluster that takes a job's nodes away tells all of its processes.
TEST(Run, SavesAtSigtermAndGoesOnAsIfItHadNeverStopped) {
  ProcessHarness harness;
  const TinyRun run =
      WriteTinyRun(harness, WriteTinyModel(harness, "model"), 1,
                   {kTwoPolicyRanks, "train.save_on_sigterm=true", "actor.lr_warmup_ratio=0",
                    "critic.lr_warmup_ratio=0", "actor.lr_scheduler=constant", "critic.lr_scheduler=constant"});
  const auto in = [&](const std::string& name, const std::vector<std::string>& more) {
    return With(run.arguments, With({"--launch", "--set=run_dir=" + harness.Path(name)}, more));
  };
  const pid_t pid = harness.Start(kOrchestrator, in("stopped", {"--set=train.max_steps=1000"}));
  ASSERT_FALSE(WaitForRecords(harness, pid, harness.Path("stopped") + "/metrics.jsonl", 2, absl::Seconds(60)).empty())
      << harness.Output(pid);
  for (const pid_t process : harness.Alive()) kill(process, SIGTERM);
  const auto outcome = harness.Wait(pid, absl::Seconds(60));
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("the run ends after the step under way"), HasSubstr("stopped by SIGTERM")));
  EXPECT_THAT(harness.Survivors(absl::Seconds(5)), IsEmpty());
  const size_t steps = ReadRecords(harness.Path("stopped") + "/metrics.jsonl").size();
  EXPECT_EQ(std::filesystem::read_symlink(harness.Path("stopped") + "/checkpoints/latest"),
            absl::StrCat("step_", steps));

  const std::string all = absl::StrCat("--set=train.max_steps=", steps + 1);
  const std::string command = CommandBelow(absl::StrCat("To continue after step ", steps), outcome.output);
  const auto continued = harness.Run("/bin/sh", {"-c", absl::StrCat(command, " ", all)}, absl::Seconds(120));
  EXPECT_EQ(continued.exit_code, 0) << continued.output;
  const auto whole = harness.Run(kOrchestrator, in("whole", {all}), absl::Seconds(120));
  EXPECT_EQ(whole.exit_code, 0) << whole.output;
  const auto records = ReadRecords(harness.Path("stopped") + "/metrics.jsonl");
  const auto expected = ReadRecords(harness.Path("whole") + "/metrics.jsonl");
  ASSERT_EQ(records.size(), steps + 1);
  ASSERT_EQ(expected.size(), steps + 1);
  for (size_t step = 0; step <= steps; ++step) ExpectSameMetrics(records[step], expected[step], 1e-5);
}

// With a critic that warms up, after whose steps the rollout has its weights again as they were.
TEST(Run, LearnsTheSameWhereItsRolloutSleepsWhileOthersTrain) {
  ProcessHarness harness;
  const TinyRun run =
      WriteTinyRun(harness, WriteTinyModel(harness, "model"), 1,
                   {"services.rollout.ranks=2", "train.max_steps=4", "algorithm.critic_warmup_steps=2"});
  const auto records = [&](const std::string& name, const std::vector<std::string>& more) {
    const auto arguments = With(run.arguments, {"--launch", "--set=run_dir=" + harness.Path(name)});
    const auto outcome = harness.Run(kOrchestrator, With(arguments, more), absl::Seconds(120));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return ReadRecords(harness.Path(name) + "/metrics.jsonl");
  };
  const auto asleep = records("asleep", {"--set=rollout.enable_sleep=true", "--set=actor.sleep_offload=true",
                                         "--set=critic.sleep_offload=true"}),
             awake = records("awake", {});
  ASSERT_EQ(asleep.size(), 4u);
  ASSERT_EQ(awake.size(), 4u);
  for (size_t step = 0; step < 2; ++step) {
    EXPECT_EQ(asleep[step].at("critic/loss"), awake[step].at("critic/loss")) << "without a policy's update";
  }
  for (size_t step = 2; step < 4; ++step) ExpectSameMetrics(asleep[step], awake[step], 1e-5);
  const auto weights = [&](const std::string& name) {
    const absl::StatusOr<std::string> file =
        ReadFile(harness.Path(name) + "/checkpoints/latest/policy/model.safetensors");
    EXPECT_TRUE(file.ok()) << file.status();
    return file.value_or("");
  };
  EXPECT_TRUE(weights("asleep") == weights("awake"));
}

TEST(Run, GoesOnAndKeepsItsTimesWhateverIsDoneToTheClock) {
  ProcessHarness harness;
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 1,
                                   {kTwoPolicyRanks, "train.max_steps=100000", "train.call_timeout_seconds=600"});
  const std::string skew_file = harness.Write("skew", std::string(sizeof(int64_t), '\0'));
  const int fd = open(skew_file.c_str(), O_RDWR | O_CLOEXEC);
  void* const mapped = mmap(nullptr, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  ASSERT_NE(mapped, MAP_FAILED);
  std::atomic_ref<int64_t> seconds_ahead(*static_cast<int64_t*>(mapped));
  const pid_t pid =
      harness.Start(kOrchestrator, With(run.arguments, {"--launch"}),
                    {{"LD_PRELOAD", ExecutableFolder() + "/libskewed_clock.so"}, {"SKEW_FILE", skew_file}});
  const auto await_steps = [&](size_t steps) {
    return WaitForRecords(harness, pid, run.run_dir + "/metrics.jsonl", steps, absl::Seconds(120));
  };
  // Abseil's clock takes some seconds to trust in the processor's counter, and then does not see at once that it was
  // set.
  size_t steps = 100;
  ASSERT_GE(await_steps(steps).size(), steps) << harness.Output(pid);
  for (const int64_t ahead : {-700, 700, 0}) {
    seconds_ahead = ahead;
    steps = ReadRecords(run.run_dir + "/metrics.jsonl").size() + 5;
    ASSERT_GE(await_steps(steps).size(), steps) << ahead << harness.Output(pid);
  }
  kill(pid, SIGINT);
  EXPECT_EQ(harness.Wait(pid, absl::Seconds(60)).exit_code, 130);
  for (const nlohmann::json& record : ReadRecords(run.run_dir + "/metrics.jsonl")) {
    for (const auto& [name, value] : record.items()) {
      if (!name.starts_with("time/") || name == "time/unix") continue;
      EXPECT_GE(value.get<double>(), 0) << name << " of " << record;
      EXPECT_LT(value.get<double>(), 100) << name << " of " << record;
    }
  }
  munmap(mapped, sizeof(int64_t));
}

TEST(Run, GoesOnAfterACrashAsIfItHadNeverStopped) {
  ProcessHarness harness;
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 1,
                                   {kTwoPolicyRanks, "services.critic_trainer.ranks=2", "train.max_steps=4",
                                    "train.save_steps=2", "algorithm.kl.kl_target=0.001"});
  const auto in = [&](const std::string& name, const std::vector<std::string>& more) {
    return With(run.arguments, With({"--launch", "--set=run_dir=" + harness.Path(name)}, more));
  };
  const auto whole = harness.Run(kOrchestrator, in("whole", {}), absl::Seconds(120));
  ASSERT_EQ(whole.exit_code, 0) << whole.output;
  const auto expected = ReadRecords(harness.Path("whole") + "/metrics.jsonl");
  ASSERT_EQ(expected.size(), 4u);

  // A rank of the policy trainer is killed in the third step.
  const auto crash = harness.Run(kOrchestrator, in("crashed", {}), absl::Seconds(120),
                                 {{"QUARTET_FAIL_POINTS", "policy_trainer.update=kill@3"}});
  ASSERT_TRUE(crash.ended);
  EXPECT_NE(crash.exit_code, 0) << crash.output;
  EXPECT_EQ(std::filesystem::read_symlink(harness.Path("crashed") + "/checkpoints/latest"), "step_2");
  std::filesystem::copy(harness.Path("crashed"), harness.Path("resharded"),
                        std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
  std::filesystem::copy(harness.Path("crashed"), harness.Path("damaged"),
                        std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);

  const auto resumed =
      harness.Run(kOrchestrator, in("crashed", {"--set=train.load_checkpoint=true"}), absl::Seconds(120));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  const auto metrics = ReadRecords(harness.Path("crashed") + "/metrics.jsonl");
  ASSERT_EQ(metrics.size(), 4u);
  for (size_t step = 0; step < 4; ++step) ExpectSameMetrics(metrics[step], expected[step], 1e-5);
  EXPECT_NE(metrics[3].at("kl/coefficient"), metrics[0].at("kl/coefficient"));
  EXPECT_EQ(std::filesystem::read_symlink(harness.Path("crashed") + "/checkpoints/latest"), "step_4");

  // Other numbers of ranks and another ZeRO stage round differently, and nothing else.
  const auto resharded =
      harness.Run(kOrchestrator,
                  in("resharded", {"--set=train.load_checkpoint=true", "--set=services.policy_trainer.ranks=3",
                                   "--set=services.critic_trainer.ranks=1", "--set=critic.zero_stage=0"}),
                  absl::Seconds(120));
  ASSERT_EQ(resharded.exit_code, 0) << resharded.output;
  const auto other = ReadRecords(harness.Path("resharded") + "/metrics.jsonl");
  ASSERT_EQ(other.size(), 4u);
  for (size_t step = 0; step < 4; ++step) ExpectSameMetrics(other[step], expected[step], 1e-3);

  // A checkpoint that was altered is never used.
  const std::string file = harness.Path("damaged") + "/checkpoints/step_2/critic_state/part-00001-of-00002.safetensors";
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(5000).put('\x55');
  const auto refused =
      harness.Run(kOrchestrator, in("damaged", {"--set=train.load_checkpoint=true"}), absl::Seconds(120));
  ASSERT_TRUE(refused.ended);
  EXPECT_NE(refused.exit_code, 0) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr(file));
  EXPECT_THAT(harness.Survivors(absl::Seconds(5)), IsEmpty());
}

TEST(Run, GoesOnFromACopyOfItsFolder) {
  ProcessHarness harness;
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 1, {"train.save_steps=1"});
  const auto first = harness.Run(kOrchestrator, With(run.arguments, {"--launch"}), absl::Seconds(120));
  ASSERT_EQ(first.exit_code, 0) << first.output;
  // As cp -rL makes it: links are followed, and checkpoints/latest is a folder like the others.
  const std::string copy = harness.Path("copy");
  std::filesystem::copy(run.run_dir, copy, std::filesystem::copy_options::recursive);
  ASSERT_FALSE(std::filesystem::is_symlink(copy + "/checkpoints/latest"));
  const auto checkpoints = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(copy + "/checkpoints")) {
      names.push_back(entry.path().filename());
    }
    return names;
  };
  const auto go_on = [&](int steps) {
    return harness.Run(kOrchestrator,
                       With(run.arguments, {"--launch", "--set=run_dir=" + copy, "--set=train.load_checkpoint=true",
                                            absl::StrCat("--set=train.max_steps=", steps)}),
                       absl::Seconds(120));
  };
  const auto second = go_on(4);
  ASSERT_EQ(second.exit_code, 0) << second.output;
  EXPECT_THAT(second.output, HasSubstr("going on after 3 of 4 steps"));
  EXPECT_EQ(ReadRecords(copy + "/metrics.jsonl").size(), 4u);
  EXPECT_THAT(checkpoints(), UnorderedElementsAre("step_2", "step_3", "step_4", "latest"));
  EXPECT_EQ(std::filesystem::read_symlink(copy + "/checkpoints/latest"), "step_4");

  // The newest has been damaged since.
  const std::string file = copy + "/checkpoints/step_4/policy_state/part-00000-of-00001.safetensors";
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(5000).put('\x55');
  const auto third = go_on(5);
  ASSERT_EQ(third.exit_code, 0) << third.output;
  EXPECT_THAT(third.output, AllOf(HasSubstr("passed over a checkpoint: " + file), HasSubstr("going on after 3 of 5")));
  const auto metrics = ReadRecords(copy + "/metrics.jsonl");
  ASSERT_EQ(metrics.size(), 5u);
  for (size_t step = 0; step < 5; ++step) EXPECT_EQ(metrics[step].at("step"), step);
  EXPECT_THAT(checkpoints(), UnorderedElementsAre("step_3", "step_4", "step_5", "latest"));
  EXPECT_TRUE(std::filesystem::exists(copy + "/superseded/2/checkpoints/step_4/policy_state"));
  EXPECT_EQ(ReadRecords(copy + "/superseded/2/metrics.jsonl").size(), 1u);
}

TEST(Run, KeepsTheRecordAndTheEvaluationOfALastStepThatWasSavedWhenItWasKilled) {
  ProcessHarness harness;
  const TinyRun run = WriteTinyRun(harness, WriteTinyModel(harness, "model"), 1, {"train.save_steps=3"});
  const std::vector<std::string> arguments =
      With(run.arguments, {"--launch", "--set=eval.data=" + harness.Path("prompts.jsonl")});
  const auto killed = harness.Run(kOrchestrator, arguments, absl::Seconds(120),
                                  {{"QUARTET_FAIL_POINTS", "orchestrator.checkpoint.committed=kill"}});
  ASSERT_EQ(killed.exit_code, 128 + SIGKILL) << killed.output;
  EXPECT_THAT(harness.Survivors(absl::Seconds(5)), IsEmpty());
  EXPECT_EQ(ReadRecords(run.run_dir + "/metrics.jsonl").size(), 2u);

  const auto resumed =
      harness.Run(kOrchestrator, With(arguments, {"--set=train.load_checkpoint=true"}), absl::Seconds(120));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  const auto metrics = ReadRecords(run.run_dir + "/metrics.jsonl");
  ASSERT_EQ(metrics.size(), 3u);
  EXPECT_EQ(metrics[2].at("step"), 2);
  EXPECT_TRUE(metrics[2].contains("policy/loss") && metrics[2].contains("eval/prompts/pass@1")) << metrics[2];
  EXPECT_FALSE(std::filesystem::exists(run.run_dir + "/superseded/1/metrics.jsonl"));

  const auto shorter = harness.Run(kOrchestrator,
                                   With(arguments, {"--set=train.load_checkpoint=true", "--set=train.max_steps=2",
                                                    "--set=train.allow_changed_run=true"}),
                                   absl::Seconds(60));
  EXPECT_EQ(shorter.exit_code, 2) << shorter.output;
  EXPECT_THAT(shorter.output, HasSubstr("the run has made 3 steps already, more than the 2 of train.max_steps"));
}

TEST(Run, IsAloneInItsFolder) {
  ProcessHarness harness;
  TinyRun run;
  const pid_t first = StartEndlessRun(harness, &run);
  const auto second = harness.Run(kOrchestrator, With(run.arguments, {"--launch", "--set=train.load_checkpoint=true"}),
                                  absl::Seconds(30));
  ASSERT_TRUE(second.ended);
  EXPECT_EQ(second.exit_code, 1) << second.output;
  EXPECT_THAT(second.output, HasSubstr(absl::StrCat("in use by another orchestrator (process ", first, " on ")));
  const size_t steps = ReadRecords(run.run_dir + "/metrics.jsonl").size();
  EXPECT_GT(WaitForRecords(harness, first, run.run_dir + "/metrics.jsonl", steps + 1, absl::Seconds(60)).size(), steps);
}

TEST(ReadRecords, LeavesALineThatIsStillBeingWritten) {
  ProcessHarness harness;
  const std::string path = harness.Write("metrics.jsonl", "{\"step\":0}\n{\"step\":1}\n{\"step\":2,\"rew");
  EXPECT_EQ(ReadRecords(path).size(), 2u);
  EXPECT_THAT(ReadRecords(harness.Path("none")), IsEmpty());
}

}  // namespace
}  // namespace quartet
