// What a user does wrong, or what the machine does to a run: each ends in a message that says what, where and what to
// do, an exit code that is not 0, within 30 seconds, and nothing is left behind.

#include <arpa/inet.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/config/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process_harness.h"
#include "tests/tiny_run.h"

namespace quartet {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr absl::Duration kLimit = absl::Seconds(30);

class Errors : public ::testing::Test {
 protected:
  // Nothing that was started is alive, so that no socket is open either.
  void ExpectNothingLeft() {
    const std::vector<pid_t> left = harness_.Survivors(absl::Seconds(5));
    for (pid_t pid : left) ADD_FAILURE() << "left behind: " << pid << " " << ProcessHarness::CommandLine(pid);
    EXPECT_THAT(harness_.ListeningSockets(), IsEmpty());
  }

  ProcessHarness::Outcome Launch(const TinyRun& run, const std::map<std::string, std::string>& environment = {},
                                 std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = run.arguments;
    arguments.push_back("--launch");
    arguments.insert(arguments.end(), more.begin(), more.end());
    return harness_.Run(kOrchestrator, arguments, kLimit, environment);
  }

  // Ended by itself, in time, with an error.
  static void ExpectFailed(const ProcessHarness::Outcome& outcome) {
    EXPECT_TRUE(outcome.ended) << "still running after 30 s:\n" << outcome.output;
    EXPECT_NE(outcome.exit_code, 0) << outcome.output;
  }

  ProcessHarness harness_;
};

// A port of this machine that is in use for as long as this lives.
class TakenPort {
 public:
  TakenPort() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(socket_, 1), 0);
    socklen_t size = sizeof(address);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~TakenPort() { close(socket_); }
  int port() const { return port_; }

 private:
  int socket_;
  int port_ = 0;
};

TEST_F(Errors, AnUnknownFieldIsNamedWithItsLine) {
  const TinyRun run = WriteTinyRun(harness_, WriteTinyModel(harness_, "model"), 1);
  harness_.Write("run.textproto", "seed: 1\nactor {\n  learning_rat: 1\n}\n");
  const auto outcome = Launch(run);
  ExpectFailed(outcome);
  EXPECT_THAT(outcome.output, HasSubstr("run.textproto:3"));
  EXPECT_THAT(outcome.output, HasSubstr("learning_rat"));
  ExpectNothingLeft();
}

TEST_F(Errors, AMissingModelFolderIsNamed) {
  const TinyRun run = WriteTinyRun(harness_, harness_.Path("no_such_model"), 1);
  const auto outcome = Launch(run);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("actor.pretrain: the folder " + harness_.Path("no_such_model")));
  EXPECT_FALSE(std::filesystem::exists(run.run_dir));
  ExpectNothingLeft();
}

TEST_F(Errors, MorePromptsABatchThanThereAreIsRefused) {
  const TinyRun run = WriteTinyRun(harness_, WriteTinyModel(harness_, "model"), 1, {"rollout.rollout_batch_size=41"});
  const auto outcome = Launch(run);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("rollout.rollout_batch_size is 41, but there are 40 prompts"));
  EXPECT_FALSE(std::filesystem::exists(run.run_dir));
}

// A service that cannot start, the corrected command, and the same once more.
TEST_F(Errors, AStartThatFailedLeavesItsFolderToTheCorrectedCommand) {
  const TinyRun run =
      WriteTinyRun(harness_, WriteTinyModel(harness_, "model"), 1, {"train.max_steps=1", "train.save_optimizer=true"});
  const auto failed = Launch(run, {}, {"--set=services.policy_trainer.device_memory_budget=1000"});
  EXPECT_EQ(failed.exit_code, 1) << failed.output;
  EXPECT_TRUE(std::filesystem::exists(run.run_dir + "/logs/policy_trainer.log"));
  // It ends in the middle of its first step.
  const auto broken = Launch(run, {{"QUARTET_FAIL_POINTS", "policy_trainer.update=kill"}});
  EXPECT_EQ(broken.exit_code, 1) << broken.output;
  const auto corrected = Launch(run);
  EXPECT_EQ(corrected.exit_code, 0) << corrected.output;
  const auto again = Launch(run);
  EXPECT_EQ(again.exit_code, 2) << again.output;
  EXPECT_THAT(again.output, HasSubstr("to continue its run: --set=train.load_checkpoint=true"));
  ExpectNothingLeft();
}

TEST_F(Errors, AMissingWeightsFileIsNamed) {
  const std::string model = WriteTinyModel(harness_, "model");
  std::filesystem::remove(model + "/model.safetensors");
  const auto outcome = Launch(WriteTinyRun(harness_, model, 1, {kTwoPolicyRanks}));
  ExpectFailed(outcome);
  EXPECT_THAT(outcome.output, HasSubstr(model));
  EXPECT_THAT(outcome.output, HasSubstr("model.safetensors"));
  ExpectNothingLeft();
}

TEST_F(Errors, ATruncatedWeightsFileIsNamed) {
  const std::string model = WriteTinyModel(harness_, "model");
  const std::string file = model + "/model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1000);
  const auto outcome = Launch(WriteTinyRun(harness_, model, 1, {kTwoPolicyRanks}));
  ExpectFailed(outcome);
  EXPECT_THAT(outcome.output, HasSubstr(file));
  ExpectNothingLeft();
}

TEST_F(Errors, AHostileWeightsFileIsRefused) {
  const std::string model = WriteTinyModel(harness_, "model");
  const std::string file = model + "/model.safetensors";
  // A header of 2^63 bytes.
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).write("\0\0\0\0\0\0\0\x80", 8);
  const auto outcome = Launch(WriteTinyRun(harness_, model, 1, {kTwoPolicyRanks}));
  ExpectFailed(outcome);
  EXPECT_THAT(outcome.output, HasSubstr(file));
  EXPECT_THAT(outcome.output, HasSubstr("header"));
  ExpectNothingLeft();
}

TEST_F(Errors, ATokenizerLargerThanTheModelIsRefusedWithBothSizes) {
  const std::string model = WriteTinyModel(harness_, "model", /*extra_tokens=*/100);
  const auto outcome = Launch(WriteTinyRun(harness_, model, 1));
  ExpectFailed(outcome);
  EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat(3 + strlen(kTinyAlphabet) + 100)));
  EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat(TinyModelConfig().vocab_size)));
  ExpectNothingLeft();
}

// Of one size: the ids of the actor's answers would be other texts to the reward model.
TEST_F(Errors, ARewardModelWithAnotherTokenizerIsRefusedWithATokenThatDiffers) {
  const TinyRun run = WriteTinyRun(harness_, WriteTinyModel(harness_, "model"), 1,
                                   {"reward.source.1.model=" + harness_.Path("reward")});
  const std::string reward = WriteTinyModel(harness_, "reward");
  nlohmann::json tokenizer = nlohmann::json::parse(std::ifstream(reward + "/tokenizer.json"));
  std::swap(tokenizer["model"]["vocab"]["3"], tokenizer["model"]["vocab"]["7"]);
  std::ofstream(reward + "/tokenizer.json") << tokenizer.dump();
  const auto outcome = Launch(run);
  ExpectFailed(outcome);
  EXPECT_THAT(outcome.output, HasSubstr(reward + " has another tokenizer than the actor " + harness_.Path("model")));
  EXPECT_THAT(outcome.output, HasSubstr("is \"7\", not \"3\""));
  ExpectNothingLeft();
}

TEST_F(Errors, APromptThatIsTooLongIsNamedWithItsLine) {
  const TinyRun run = WriteTinyRun(harness_, WriteTinyModel(harness_, "model"), 1);
  std::ofstream(harness_.Path("prompts.jsonl"), std::ios::app)
      << "{\"prompt\": \"" << std::string(17, '1') << "\", \"label\": \"1\"}\n";
  const auto outcome = Launch(run, {}, {"--set=data.filter_overlong_prompts=false"});
  ExpectFailed(outcome);
  EXPECT_THAT(outcome.output, HasSubstr("prompts.jsonl line 41: "));
  EXPECT_THAT(outcome.output, HasSubstr("17"));
  EXPECT_THAT(outcome.output, HasSubstr("prompt_max_len"));
  ExpectNothingLeft();
}

TEST_F(Errors, APortInUseIsNamed) {
  const TakenPort taken;
  const TinyRun run = WriteTinyRun(harness_, WriteTinyModel(harness_, "model"), 1);
  const std::string address = absl::StrCat("127.0.0.1:", taken.port());
  for (const std::string& service : kServiceNames) {
    const auto outcome = harness_.Run(absl::StrCat(service, "/", service),
                                      {"--config=" + run.config, "--ranks=1", "--listen=" + address}, kLimit);
    ExpectFailed(outcome);
    EXPECT_THAT(outcome.output, HasSubstr(address)) << service;
    EXPECT_THAT(outcome.output, HasSubstr("in use")) << service;
  }
  ExpectNothingLeft();
}

TEST_F(Errors, AnAddressBeyondThisMachineIsRefusedWithoutTls) {
  const TinyRun run = WriteTinyRun(harness_, WriteTinyModel(harness_, "model"), 1);
  const auto outcome = harness_.Run("scorer/scorer", {"--config=" + run.config, "--listen=0.0.0.0:0"}, kLimit);
  ExpectFailed(outcome);
  EXPECT_THAT(outcome.output, HasSubstr("0.0.0.0"));
  EXPECT_THAT(outcome.output, HasSubstr("tls"));
  ExpectNothingLeft();
}

// Each service in turn: one of its ranks is killed after the first step.
TEST_F(Errors, AServiceKilledInTheMiddleOfTheRunIsNamed) {
  const std::string model = WriteTinyModel(harness_, "model");
  for (const std::string& service : kServiceNames) {
    SCOPED_TRACE(service);
    const TinyRun run =
        WriteTinyRun(harness_, model, 1, {"train.max_steps=100000", absl::StrCat("services.", service, ".ranks=2")});
    const std::string run_dir = run.run_dir + "." + service;
    std::vector<std::string> arguments = run.arguments;
    arguments.insert(arguments.end(), {"--launch", "--set=run_dir=" + run_dir});
    const pid_t orchestrator = harness_.Start(kOrchestrator, arguments);
    ASSERT_FALSE(WaitForRecords(harness_, orchestrator, run_dir + "/metrics.jsonl", 1, kLimit).empty())
        << harness_.Output(orchestrator);
    const std::vector<pid_t> ranks = harness_.Find(service + "/rank");
    ASSERT_EQ(ranks.size(), 2u) << harness_.Output(orchestrator);
    ASSERT_EQ(kill(ranks[1], SIGKILL), 0);
    const auto outcome = harness_.Wait(orchestrator, kLimit);
    ExpectFailed(outcome);
    EXPECT_THAT(outcome.output, HasSubstr(service));
    EXPECT_THAT(outcome.output, AnyOf(HasSubstr("rank"), HasSubstr("SIGKILL")));
    ExpectNothingLeft();
  }
}

TEST_F(Errors, ASuppressedWeightSyncEndsTheRun) {
  const TinyRun run = WriteTinyRun(harness_, WriteTinyModel(harness_, "model"), 1);
  const auto outcome = Launch(run, {{"QUARTET_FAIL_POINTS", "orchestrator.weight_sync.skip=trip"}});
  ExpectFailed(outcome);
  EXPECT_THAT(outcome.output, HasSubstr("version"));
  ExpectNothingLeft();
}

TEST_F(Errors, WeightsThatDoNotVerifyAreNeverServed) {
  const TinyRun run = WriteTinyRun(harness_, WriteTinyModel(harness_, "model"), 1, {kTwoPolicyRanks});
  const auto outcome = Launch(run, {{"QUARTET_FAIL_POINTS", "policy_trainer.publish.corrupt=trip"}});
  ExpectFailed(outcome);
  EXPECT_THAT(outcome.output, HasSubstr("hash"));
  EXPECT_THAT(outcome.output, HasSubstr("model."));  // the tensor's name
  ExpectNothingLeft();
}

TEST_F(Errors, AMemoryBudgetThatIsTooSmallNamesTheServiceTheRankAndWhatToDo) {
  // The tiny model's weights fit, its gradients and optimizer do not.
  const int64_t budget = std::filesystem::file_size(WriteTinyModel(harness_, "model") + "/model.safetensors");
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    const TinyRun run =
        WriteTinyRun(harness_, harness_.Path("model"), 1, {absl::StrCat("services.policy_trainer.ranks=", ranks)});
    const auto outcome = Launch(run, {},
                                {absl::StrCat("--set=services.policy_trainer.device_memory_budget=", budget),
                                 absl::StrCat("--set=run_dir=", run.run_dir, ranks)});
    ExpectFailed(outcome);
    EXPECT_THAT(outcome.output, HasSubstr("policy_trainer ended by itself"));
    EXPECT_THAT(outcome.output, ContainsRegex("rank [01] "));
    EXPECT_THAT(outcome.output, HasSubstr("do not fit into the device memory budget"));
    EXPECT_THAT(outcome.output, HasSubstr("Held now: "));
    EXPECT_THAT(outcome.output, HasSubstr("What would help: "));
    ExpectNothingLeft();
  }
}

// Less than the first update takes, more than anything before it.
TEST_F(Errors, AMemoryBudgetPassedInTheMiddleOfTheRunNamesTheServiceTheRankAndWhatToDo) {
  const TinyRun run = WriteTinyRun(harness_, WriteTinyModel(harness_, "model"), 1,
                                   {"train.max_steps=1", "services.policy_trainer.ranks=2"});
  const auto unbounded = Launch(run);
  ASSERT_EQ(unbounded.exit_code, 0) << unbounded.output;
  const int64_t most = ReadRecords(run.run_dir + "/metrics.jsonl").at(0)["memory/policy_trainer/total"];
  const auto outcome = Launch(run, {},
                              {absl::StrCat("--set=services.policy_trainer.device_memory_budget=", most - most / 10),
                               absl::StrCat("--set=run_dir=", run.run_dir, ".bounded")});
  ExpectFailed(outcome);
  EXPECT_THAT(outcome.output, ContainsRegex("policy_trainer at .*, Update: rank [01] .*: policy update: "));
  EXPECT_THAT(outcome.output, HasSubstr("do not fit into the device memory budget"));
  EXPECT_THAT(outcome.output, HasSubstr("for activations: gradient_checkpointing"));
  ExpectNothingLeft();
}

TEST_F(Errors, AFullDiskIsNamed) {
  const TinyRun run = WriteTinyRun(harness_, WriteTinyModel(harness_, "model"), 1, {"train.save_steps=1"});
  const std::string disk = harness_.Path("disk");
  std::filesystem::create_directory(disk);
  // Smaller than one checkpoint of the tiny model.
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=80k") != 0) {
    GTEST_SKIP() << "mounting a small disk needs root: " << strerror(errno);
  }
  const auto outcome = Launch(run, {}, {"--set=run_dir=" + disk + "/run"});
  EXPECT_FALSE(std::filesystem::exists(disk + "/run/checkpoints/step_1")) << "nothing of it is left";
  umount2(disk.c_str(), MNT_DETACH);
  ExpectFailed(outcome);
  EXPECT_THAT(outcome.output, HasSubstr(disk));
  EXPECT_THAT(outcome.output, HasSubstr("No space left"));
  EXPECT_THAT(outcome.output, HasSubstr("free some space"));
  EXPECT_THAT(outcome.output, HasSubstr("There is no whole checkpoint to continue from yet"));
  ExpectNothingLeft();
}

TEST_F(Errors, AnUnknownFlagIsNamed) {
  for (const char* program : {"orchestrator/orchestrator", "rollout/rollout", "policy_trainer/policy_trainer",
                              "critic_trainer/critic_trainer", "scorer/scorer", "quickstart/quickstart",
                              "orchestrator/sft", "orchestrator/dpo", "orchestrator/reward_model"}) {
    const auto outcome = harness_.Run(program, {"--rnaks=2"}, kLimit);
    ExpectFailed(outcome);
    EXPECT_THAT(outcome.output, HasSubstr("rnaks")) << program;
  }
  ExpectNothingLeft();
}

TEST_F(Errors, HelpTellsEveryOption) {
  for (const char* program : {"orchestrator/orchestrator", "rollout/rollout", "policy_trainer/policy_trainer",
                              "critic_trainer/critic_trainer", "scorer/scorer"}) {
    const auto outcome = harness_.Run(program, {"--help"}, kLimit);
    EXPECT_EQ(outcome.exit_code, 0) << program;
    EXPECT_THAT(outcome.output, HasSubstr("--config")) << program;
    EXPECT_THAT(outcome.output, HasSubstr("rollout_batch_size")) << program;
  }
}

}  // namespace
}  // namespace quartet
