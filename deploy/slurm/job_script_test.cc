#include "deploy/slurm/job_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/testing/scratch_folder.h"
#include "core/service/process/child_process.h"
#include "deploy/slurm/script_parts.h"

namespace quartet {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

using Strings = std::vector<std::string>;

absl::StatusOr<std::string> Script(Strings overrides, const SlurmOptions& options = {}) {
  overrides.insert(overrides.begin(), "run_dir=/shared/runs/first");
  const ConfigSources sources = {.overrides = overrides};
  const absl::StatusOr<RunConfig> config = LoadRunConfig(sources, "");
  if (!config.ok()) return config.status();
  const absl::StatusOr<ValueOrigins> origins = OriginsOf(sources);
  return SlurmJobScript(*config, *origins, "/opt/quartet", options);
}

const Strings kGpus = {"services.device=cuda", "cluster.num_nodes=4", "cluster.num_gpus_per_node=8",
                       "cluster.gpu=H100-80G"};

Strings With(Strings overrides, const Strings& more) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

void ExpectRunnable(const std::string& script) {
  ScratchFolder scratch;
  ChildProcessOptions options;
  options.argv = {"/bin/bash", "-n", scratch.Write("job.sh", script)};
  options.log_file = scratch.path() + "/log";
  auto child = ChildProcess::Start(options);
  ASSERT_TRUE(child.ok()) << child.status();
  const auto exit = (*child)->Wait(absl::Seconds(60));
  ASSERT_TRUE(exit.has_value());
  EXPECT_TRUE(exit->ok()) << scratch.Read("log");
}

TEST(SlurmJobScript, AsksForTheNodesOfServicesThatShareNone) {
  const auto script =
      Script(With(kGpus, {"services.policy_trainer.num_nodes=2", "services.policy_trainer.num_gpus_per_node=8",
                          "services.critic_trainer.num_gpus_per_node=8", "services.rollout.num_gpus_per_node=4",
                          "services.scorer.num_gpus_per_node=2", "cluster.num_cpus_per_node=64",
                          "cluster.host_memory_bytes=1099511627776"}),
             {.sbatch = {"--partition=gpu", "--time=24:00:00"}});
  ASSERT_TRUE(script.ok()) << script.status();
  ExpectRunnable(*script);
  EXPECT_THAT(*script,
              AllOf(HasSubstr("# policy_trainer: nodes 0, 1 of the plan\n"
                              "#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:8 --exclusive --mem=0\n"
                              "#SBATCH --partition=gpu\n#SBATCH --time=24:00:00\n#SBATCH hetjob\n"
                              "# critic_trainer: nodes 2 of the plan\n"),
                    // Others may use the rest of this node.
                    HasSubstr("# rollout, scorer: nodes 3 of the plan\n"
                              "#SBATCH --nodes=1 --ntasks-per-node=1 --gres=gpu:6 --cpus-per-gpu=8 --mem=786432M\n")));
  EXPECT_THAT(*script, AllOf(HasSubstr("\"--set=services.policy_trainer.listen=${hosts0[0]}:$((port + 1))\""),
                             HasSubstr("\"--set=services.scorer.listen=${hosts2[0]}:$((port + 3))\"")));
  // Of the six GPUs that the component has.
  EXPECT_THAT(*script,
              HasSubstr("QUARTET_NODE_GPUS='4,5' srun --het-group=2 --nodelist=\"${hosts2[0]}\" --nodes=1 --ntasks=2 "
                        "--ntasks-per-node=2"));
  // Cores are the service's own where nobody else is on the node.
  EXPECT_THAT(*script, AllOf(ContainsRegex("QUARTET_NODE_GPUS='0,1,2,3,4,5,6,7;0,1,2,3,4,5,6,7' "
                                           "QUARTET_RANK_CORES='0-7;8-15;[-0-9;]*' srun --het-group=0 "),
                             Not(HasSubstr("QUARTET_RANK_CORES='0-7' srun --het-group=2"))));
  EXPECT_THAT(*script, HasSubstr("exec srun --het-group=0 --nodelist=\"${hosts0[0]}\" --nodes=1 --ntasks=1 --overlap"));
}

TEST(SlurmJobScript, IsAnOrdinaryJobWhereAllServicesShareNodes) {
  const auto script =
      Script({"services.policy_trainer.ranks=2", "tls.ca_file=/ca", "tls.cert_file=/cert", "tls.key_file=/key"});
  ASSERT_TRUE(script.ok()) << script.status();
  ExpectRunnable(*script);
  EXPECT_THAT(*script, AllOf(HasSubstr("#SBATCH --nodes=1 --ntasks-per-node=1 --exclusive --mem=0\n"),
                             Not(HasSubstr("het")), Not(HasSubstr("openssl")), Not(HasSubstr("CUDA_VISIBLE")),
                             HasSubstr("hosts0=($(scontrol show hostnames \"$SLURM_JOB_NODELIST\"))")));
}

TEST(SlurmJobScript, GivesTheOrchestratorANodeOfItsOwnWhereAskedTo) {
  const auto script = Script({}, {.orchestrator_sbatch = {"--partition=cpu"}, .max_restarts = 5});
  ASSERT_TRUE(script.ok()) << script.status();
  ExpectRunnable(*script);
  EXPECT_THAT(
      *script,
      AllOf(HasSubstr("#SBATCH hetjob\n# the orchestrator\n#SBATCH --nodes=1 --ntasks=1\n#SBATCH --partition=cpu\n"),
            HasSubstr("srun --het-group=1 --nodes=1 --ntasks=1"), HasSubstr("max_restarts=5\n"),
            HasSubstr("all_nodes=--het-group=0-1\n")));
}

// It runs on each node of the job, and must not find itself.
TEST(SlurmJobScript, KillsWhatAnEarlierStartHasLeft) {
  const auto script = Script({});
  ASSERT_TRUE(script.ok()) << script.status();
  EXPECT_LT(script->find("pkill"), script->find("declare -A steps")) << "before there are new ones";
  const ScratchFolder scratch;
  const auto left_of = [&](const std::string& run) {
    return ChildProcess::Start({.argv = {"/bin/bash", "-c", "while :; do sleep 0.05; done",
                                         absl::StrCat("--config=", scratch.path(), "/", run, "/launch/run.textproto"),
                                         "--set=services.rollout.listen=host1:1"}})
        .value();
  };
  const auto own = left_of("exp.1"), other = left_of("exp_1");
  const auto said = RunInShell(
      absl::StrCat("bash ",
                   scratch.Write("script", absl::StrCat(R"(
      srun() { while [[ $1 == -* ]]; do shift; done; "$@"; }
      restart=1 all_nodes= config=)",
                                                        scratch.path(), "/exp.1/launch/run.textproto\n", kClear))),
      absl::InfiniteDuration());
  ASSERT_TRUE(said.ok() && said->end.ok()) << said->output;
  EXPECT_EQ(own->Wait(absl::InfiniteDuration())->signal, SIGKILL);
  EXPECT_FALSE(other->Poll().has_value()) << "it is another run's";
}

// What the script does at last with an orchestrator that does and ends so, once the scorer has started and `more` was
// done, which ends with `code_of_service`. `before` is what it does before it starts services.
std::string EndOf(const std::string& orchestrator, const std::string& more = ":", int code_of_service = 0,
                  const std::string& before = "") {
  const ScratchFolder scratch;
  scratch.Write("run/logs/scorer.log", "");
  scratch.Write("run/launch/run.textproto", "");
  const std::string script =
      absl::StrCat("say() { echo \"$*\"; touch said; }\nend=", code_of_service, "\ncd ", scratch.path(), R"(
        run_dir=$PWD/run requests=$PWD SLURM_JOB_ID=17 check=off program=ppo programs=. config=c where=() max_restarts=3
        services=(scorer)
        declare -A steps
        programs_of() { echo .; }
        start_scorer() { (until [ -e stopped ]; do sleep 0.05; done; exit $end) & steps[scorer]=$!; )",
                   more, R"(; }
        scancel() { touch stopped; }
        squeue() { echo RUNNING; }
        scontrol() { echo "scontrol $*"; }
        on_orchestrator() {
          if [ "$1" = ears ]; then exec "${@:2}"; fi
          exec "${@:2:4}" bash -c ')",
                   orchestrator, "'; }\n", kEars, before, kEnd);
  const auto said = RunInShell("bash " + scratch.Write("script", script), absl::InfiniteDuration());
  return said.ok() ? absl::StrCat(said->output, "; ", said->end.Describe()) : said.status().ToString();
}

TEST(SlurmJobScript, HearsSigtermThatComesBeforeTheOrchestrator) {
  // As Slurm sends it, to each step that is there. The orchestrator would go on until it is told.
  EXPECT_THAT(
      EndOf("until [ -e stopped ]; do sleep 0.05; done", "kill -TERM $ears"),
      AllOf(HasSubstr("SIGTERM has come before the orchestrator's step\n"), HasSubstr("asked to end: queued again"),
            HasSubstr("scontrol requeue 17\n"), HasSubstr("ends with exit code 143")));
  // The one that waited for it has ended by then.
  EXPECT_EQ(EndOf("until [ -e stopped ]; do kill -0 $(<ears) 2>/dev/null || exit 0; sleep 0.05; done; exit 1",
                  "echo $ears >ears"),
            "ends with exit code 0; exit code 0");
}

TEST(SlurmJobScript, HearsSigtermFromItsBeginning) {
  const std::string never = "touch began; until [ -e stopped ]; do sleep 0.05; done";
  const auto queued = AllOf(HasSubstr("asked to end: queued again"), HasSubstr("scontrol requeue 17\n"),
                            HasSubstr("ends with exit code 143"), Not(HasSubstr("SIGTERM has come before")));
  EXPECT_THAT(EndOf(never, ":", 0, "kill -TERM $ears; sleep 0.2\n"), queued);
  // The step ends by the signal that comes to the other a moment later.
  const std::string in_step = R"(
    tls=$run_dir all_nodes=
    srun() { (sleep 0.5; kill -TERM $ears) & return 143; }
  )";
  EXPECT_THAT(EndOf(never, ":", 0, in_step + kTls), queued);
  // There is no program to check with.
  EXPECT_THAT(EndOf(never, "{ (sleep 0.5; kill -TERM $ears) & }", 0, "check=on\nstop_services() { touch stopped; }\n"),
              queued);
  // Whether SIGTERM comes or not.
  EXPECT_THAT(EndOf(never, ":", 0, "kill -TERM $ears; sleep 0.2; finish 2\n"),
              AllOf(HasSubstr("ends with exit code 2"), Not(HasSubstr("queued again"))));
  EXPECT_THAT(EndOf(never, ":", 0, in_step + "srun() { return 1; }\n" + kTls),
              AllOf(HasSubstr("failed: queued again"), HasSubstr("ends with exit code 1")));
}

// As Ray's driver does (deploy/ray/launch_test.py).
TEST(SlurmJobScript, IsQueuedAgainAfterSigtermAndFailuresWhateverTheRunWasAt) {
  for (const std::string failed : {"exit 1", "kill -KILL $$"}) {
    EXPECT_THAT(EndOf(failed), HasSubstr("failed: queued again, to go on after its newest checkpoint, none\n"
                                         "scontrol requeue 17\n"))
        << failed;
  }
  EXPECT_THAT(EndOf("exit 143"), AllOf(HasSubstr("asked to end: queued again"), HasSubstr("scontrol requeue 17\n")));
  for (const int code : {0, 2, 130}) {
    EXPECT_EQ(EndOf(absl::StrCat("exit ", code)), absl::StrCat("ends with exit code ", code, "; exit code ", code));
  }
  // The service ends before it, and one of them says that its configuration is wrong.
  const std::string outlives = "touch stopped; until [ -e said ]; do sleep 0.05; done; exit ";
  for (const auto& [code, code_of_service] : {std::pair(2, 1), std::pair(1, 2)}) {
    EXPECT_THAT(EndOf(absl::StrCat(outlives, code), ":", code_of_service),
                AllOf(HasSubstr("the step of the scorer has ended"), HasSubstr("ends with exit code 2; exit code 2"),
                      Not(HasSubstr("queued again"))));
  }
  EXPECT_THAT(EndOf(outlives + "0", ":", 1), HasSubstr("failed: queued again"));
}

TEST(SlurmJobScript, HasCoresForItsRanksWhereNobodySaysHowManyThereAre) {
  const auto script =
      Script(With(kGpus, {"services.policy_trainer.num_gpus_per_node=3", "cluster.num_nodes=1",
                          "services.critic_trainer.num_gpus_per_node=1", "services.rollout.num_gpus_per_node=2",
                          "services.scorer.num_gpus_per_node=1"}));
  ASSERT_TRUE(script.ok()) << script.status();
  EXPECT_THAT(*script, HasSubstr("#SBATCH --nodes=1 --ntasks-per-node=1 --gres=gpu:7 --cpus-per-task=8\n"));
}

// What the script does with the folder of requests, with `more` behind it.
std::string OnRequests(const ScratchFolder& scratch, const std::string& more) {
  const auto said = RunInShell(
      "bash " +
          scratch.Write("script", absl::StrCat("run_dir=", scratch.path(), " programs=/programs SLURM_JOB_ID=1\n",
                                               "requests=$run_dir/launch/services\n",
                                               "say() { echo \"$*\"; }\nfinish() { exit $1; }\n", kRequests, more)),
      absl::InfiniteDuration());
  return said.ok() ? absl::StrCat(said->output, "; ", said->end.Describe()) : said.status().ToString();
}

// As launch/services is made and read by Ray's driver (deploy/ray/launch.py), too.
TEST(SlurmJobScript, TakesRequestsAndProgramsFromItsOwnUserAlone) {
  const ScratchFolder scratch;
  const std::string requests = scratch.path() + "/launch/services";
  std::filesystem::create_directories(requests);
  chmod(requests.c_str(), 0777);
  scratch.Write("launch/services/scorer.programs", "/own\n");
  EXPECT_EQ(OnRequests(scratch, "stat -c %a $requests; programs_of scorer; programs_of rollout"),
            "700\n/own\n/programs; exit code 0");
  std::filesystem::rename(requests + "/scorer.programs", scratch.path() + "/elsewhere");
  std::filesystem::create_symlink(scratch.path() + "/elsewhere", requests + "/scorer.programs");
  EXPECT_EQ(OnRequests(scratch, "programs_of scorer"), "/programs; exit code 0");
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  const std::string request = "echo stop >$requests/request; chown 12345 $requests/request; take_request; ls $requests";
  EXPECT_EQ(OnRequests(scratch, request),
            requests + "/request is of another user, and is dropped\nscorer.programs; exit code 0");
  for (const std::string& folder : {requests, scratch.path() + "/launch"}) {
    ASSERT_EQ(chown(folder.c_str(), 12345, 12345), 0);
    EXPECT_THAT(OnRequests(scratch, "echo goes on"),
                AllOf(HasSubstr(folder + " is no folder of this run's user alone"), HasSubstr("; exit code 2")));
    ASSERT_EQ(chown(folder.c_str(), 0, 0), 0);
  }
}

TEST(SlurmJobScript, StartsTheServicesAndTheProgramOfWhatIsTrained) {
  const auto script = Script({}, {.program = Program::kDpo});
  ASSERT_TRUE(script.ok()) << script.status();
  ExpectRunnable(*script);
  EXPECT_THAT(*script, AllOf(HasSubstr("\nprogram=dpo\n"), HasSubstr("\nservices=(policy_trainer scorer)\n"),
                             HasSubstr("start_scorer() {"), Not(HasSubstr("start_rollout() {"))));
}

TEST(SlurmJobScript, EndsServicesThatHaveLostTheirOrchestrator) {
  EXPECT_THAT(*Script({}), HasSubstr("\n  --set=services.orchestrator_timeout_seconds=300\n"));
  EXPECT_THAT(*Script({"services.orchestrator_timeout_seconds=0"}), Not(HasSubstr("orchestrator_timeout_seconds")))
      << "the configuration says it";
}

TEST(SlurmJobScript, KeepsPortsThatAreChosen) {
  const auto script = Script({"services.rollout.listen=0.0.0.0:7000"});
  ASSERT_TRUE(script.ok()) << script.status();
  EXPECT_THAT(*script, HasSubstr("services.rollout.listen=${hosts0[0]}:7000\""));
  EXPECT_EQ(
      Script({"services.rollout.listen=10.0.0.7:7000", "tls.ca_file=/ca", "tls.cert_file=/cert", "tls.key_file=/key"})
          .status()
          .message(),
      "services.rollout.listen is 10.0.0.7:7000, but it is Slurm that chooses the host; give 0.0.0.0:7000, or leave "
      "it out");
}

TEST(SlurmJobScript, NamesWhatSlurmCannotBeAskedFor) {
  EXPECT_THAT(std::string(Script({"cluster.num_nodes=2", "services.policy_trainer.ranks=3"}).status().message()),
              AllOf(HasSubstr("services.policy_trainer.ranks is 3 on 2 nodes"), HasSubstr("num_nodes")));
  EXPECT_THAT(std::string(Script({}, {.sbatch = {"gpu"}}).status().message()),
              AllOf(HasSubstr("--sbatch=gpu is no option"), HasSubstr("--partition=gpu")));
  EXPECT_THAT(std::string(Script({"run_dir=/runs/50%"}).status().message()), HasSubstr("/runs/50%"));
}

}  // namespace
}  // namespace quartet
