// Starts a run and its services where they are to run: here, or on a cluster that another system runs.
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/config/origins/origins.h"
#include "core/run_folder/private_folder.h"
#include "core/run_folder/run_lock.h"
#include "deploy/slurm/job.h"
#include "deploy/slurm/job_script.h"
#include "orchestrator/launch/launch_plan.h"
#include "orchestrator/loop/train.h"
#include "orchestrator/offline/train.h"
#include "orchestrator/session/run_program.h"

namespace quartet {
namespace {

// What ray/launch.py reads, and the script itself; relative to the run's folder, to that of the programs.
constexpr char kRayPlan[] = "launch/ranks.json";
constexpr char kRayDriver[] = "deploy/ray/launch";

enum class Engine { kProcess, kSlurm, kRay };

struct LaunchFlags {
  Engine engine = Engine::kProcess;
  ConfigSources sources;
  int max_restarts = 3;
  std::string check = "on";
  bool dry_run = false;
  SlurmOptions slurm;
  bool detach = false;
  std::string ray_address, python;  // "": their defaults
};

CommandLine LaunchCommandLine(LaunchFlags* flags) {
  return {
      .program = "launch",
      .before =
          "launch: starts a run and its services where they are to run.\n\n"
          "Usage: launch [--engine=process] [--program=NAME] --config=FILE [flags of the program]\n"
          "       launch --engine=slurm|ray [--program=NAME] --config=FILE [flags]\n\n"
          "On this host (\"process\") it is the orchestrator, sft, dpo or reward_model with --launch; their --help "
          "tells the\nflags. On a cluster:\n",
      .flags = {{"engine", "NAME", "What starts the processes: process, slurm or ray.",
                 OneOf<Engine>({{"process", Engine::kProcess}, {"slurm", Engine::kSlurm}, {"ray", Engine::kRay}},
                               &flags->engine)},
                {"program", "NAME", "What is run: ppo (default), sft, dpo or reward_model.",
                 OneOf(kRunPrograms, &flags->sources.program)},
                {"preset", "NAME", "As the orchestrator's.", Text(&flags->sources.preset)},
                {"config", "FILE",
                 "The run's configuration. Its `cluster` says what nodes there are, services.*.num_nodes and\n"
                 "num_gpus_per_node what each service has of them.",
                 Text(&flags->sources.file)},
                {"set", "PATH=VALUE", "Overrides one field. May be repeated.", Texts(&flags->sources.overrides)},
                {"max_restarts", "N",
                 "A run that fails is started again, at most N times without a new checkpoint between. Default 3.",
                 AtLeast(0, &flags->max_restarts)},
                {"check", "on|off|only",
                 "Whether hosts and links are looked at before models are loaded, at each start of the run. Default\n"
                 "on. only: nothing else is done.",
                 OneOf<std::string>({{"on", "on"}, {"off", "off"}, {"only", "only"}}, &flags->check)},
                {"dry_run", "", "Look at everything, write what the engine reads, and start nothing.",
                 Switch(&flags->dry_run)},
                {"sbatch", "OPTION",
                 "Slurm: an option of sbatch for the nodes of the services, such as --sbatch=--partition=gpu or\n"
                 "--sbatch=--time=24:00:00. May be repeated.",
                 Texts(&flags->slurm.sbatch)},
                {"orchestrator_sbatch", "OPTION",
                 "Slurm: the same for a node that the orchestrator is to have to itself. Default: it runs on the\n"
                 "first node of the services.",
                 Texts(&flags->slurm.orchestrator_sbatch)},
                {"detach", "", "Slurm: leave the job to itself once it is submitted.", Switch(&flags->detach)},
                {"ray_address", "HOST:PORT", "Ray: the cluster, as ray.init takes it. Default auto.",
                 Text(&flags->ray_address)},
                {"python", "PROGRAM",
                 "Ray: the Python that has the package ray, of the cluster's version. Default python3.",
                 Text(&flags->python)}},
      .after =
          "\nSlurm: Ctrl-C ends the watching of a job, not the job. Ray: it ends the run.\n\nExit codes: 0; 1 where "
          "the run failed; 2 for a wrong configuration or wrong data; 130, 143 or 129 after SIGINT,\nSIGTERM or "
          "SIGHUP; 130 where the job was cancelled.\n",
      .check = [flags] {
        const bool of_slurm =
            flags->detach || !flags->slurm.sbatch.empty() || !flags->slurm.orchestrator_sbatch.empty();
        if (of_slurm && flags->engine != Engine::kSlurm) {
          return absl::InvalidArgumentError("--sbatch, --orchestrator_sbatch and --detach are for --engine=slurm");
        }
        const bool of_ray = !flags->ray_address.empty() || !flags->python.empty();
        if (!of_ray || flags->engine == Engine::kRay) return absl::OkStatus();
        return absl::InvalidArgumentError("--ray_address and --python are for --engine=ray");
      }};
}

// Whether the flags are of the program that is to be run, which has more; `words` are those for it, its name first.
bool IsOfProgram(int argc, char** argv, std::vector<std::string>* words) {
  std::string engine = "process", program = "ppo";
  bool help = false;
  words->push_back("");
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    bool taken = false;
    for (auto [flag, to] : {std::pair{"--engine", &engine}, std::pair{"--program", &program}}) {
      if (word.starts_with(absl::StrCat(flag, "="))) {
        *to = word.substr(word.find('=') + 1);
        taken = true;
      } else if (word == flag && i + 1 < argc) {
        *to = argv[++i];
        taken = true;
      }
    }
    if (taken) continue;
    help = help || word == "--help" || word == "--version";
    words->push_back(word);
  }
  const bool known =
      std::any_of(kRunPrograms.begin(), kRunPrograms.end(), [&](const auto& one) { return one.first == program; });
  words->front() = program == "ppo" ? "orchestrator" : program;
  return engine == "process" && known && !help;
}

// Runs the program `words` instead of this one. Returns only where that is not possible.
absl::Status Become(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  // What this program has blocked for itself.
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  execv(arguments[0], arguments.data());
  return absl::InternalError(absl::StrCat("cannot run ", words[0], ": ", strerror(errno)));
}

int BecomeProgram(std::vector<std::string> words) {
  words.front() = absl::StrCat(ServiceLauncher::DefaultProgramsFolder(), "/orchestrator/", words.front());
  words.insert(words.begin() + 1, "--launch");
  return Finish("launch", Become(std::move(words)));
}

// The run's configuration as the programs on the cluster read it.
absl::StatusOr<RunConfig> OnCluster(const LaunchFlags& flags, const ValueOrigins& origins) {
  QUARTET_ASSIGN_OR_RETURN(RunConfig config, LoadRunConfig(flags.sources, ""));
  ConfigSources sources = flags.sources;
  // Whatever comes, the run goes on with what there is.
  sources.overrides.push_back("train.load_checkpoint=true");
  if (origins.count("train.save_on_sigterm") == 0 &&
      (origins.count("train.save_optimizer") == 0 || config.train().save_optimizer())) {
    sources.overrides.push_back("train.save_on_sigterm=true");
  }
  return LoadRunConfig(sources, "");
}

absl::Status SubmitToSlurm(const LaunchFlags& flags, const std::string& run_dir, TerminalView& view,
                           const Cancellation& cancellation) {
  const std::string log_path = absl::StrCat(run_dir, "/", kSlurmLog);
  FileTail log(log_path);
  std::string earlier;  // of a run that goes on
  QUARTET_RETURN_IF_ERROR(log.Read(&earlier));
  QUARTET_ASSIGN_OR_RETURN(const std::string id,
                           SubmitSlurmJob(absl::StrCat(run_dir, "/", kSlurmScript), cancellation));
  view.Print(absl::StrCat("submitted: job ", id, "; \"scancel ", id, "\" ends it"));
  return flags.detach ? absl::OkStatus() : FollowSlurmJob(id, log_path, log, view, cancellation);
}

// Returns only where that is not possible.
absl::Status BecomeRayDriver(const LaunchFlags& flags, const std::string& run_dir, const std::string& programs) {
  std::vector<std::string> words = {"/usr/bin/env",
                                    flags.python.empty() ? "python3" : flags.python,
                                    programs + "/" + kRayDriver,
                                    run_dir,
                                    "--programs=" + programs,
                                    "--program=" + RunProgramName(flags.sources.program),
                                    "--address=" + (flags.ray_address.empty() ? "auto" : flags.ray_address),
                                    absl::StrCat("--max_restarts=", flags.max_restarts),
                                    "--check=" + flags.check};
  return Become(std::move(words));
}

absl::Status LaunchOnCluster(const LaunchFlags& flags, TerminalView& view, Cancellation& cancellation) {
  // 1. Whatever is wrong is found here, and not after hours of waiting in a queue.
  const bool slurm = flags.engine == Engine::kSlurm;
  if (slurm && !flags.dry_run) QUARTET_RETURN_IF_ERROR(CheckSlurm());
  QUARTET_ASSIGN_OR_RETURN(const ValueOrigins origins, OriginsOf(flags.sources));
  QUARTET_RETURN_IF_ERROR(CheckSaysRunDir(origins));
  QUARTET_ASSIGN_OR_RETURN(const RunConfig asked, LoadRunConfig(flags.sources, ""));
  QUARTET_ASSIGN_OR_RETURN(RunConfig config, OnCluster(flags, origins));
  QUARTET_RETURN_IF_ERROR(CheckHostsAreChosen(slurm ? "Slurm" : "Ray", /*chooses_ports=*/!slurm, origins));
  const std::string programs = ServiceLauncher::DefaultProgramsFolder();
  const std::string run_dir = config.run_dir();
  const std::string config_path = absl::StrCat(run_dir, "/", kClusterConfig);
  std::map<std::string, std::string> files;  // by name in run_dir
  if (slurm) {
    SlurmOptions options = flags.slurm;
    options.max_restarts = flags.max_restarts;
    options.check = flags.check;
    options.program = flags.sources.program;
    QUARTET_ASSIGN_OR_RETURN(files[kSlurmScript], SlurmJobScript(config, origins, programs, options));
  } else {
    QUARTET_ASSIGN_OR_RETURN(const std::vector<RankLaunch> plan,
                             MakeLaunchPlan(config, ServicesOf(flags.sources.program, config),
                                            TopologyOf(config.cluster()), programs, {"--config=" + config_path}));
    files[kRayPlan] = LaunchPlanAsJson(plan);
  }
  RunSession session(flags.sources.program, asked, {.on_cluster = true, .origins = origins}, view, cancellation);
  QUARTET_RETURN_IF_ERROR(session.program() == Program::kPpo ? CheckPpo(session) : CheckRows(session));

  // 2. What the engine and the programs read, in the run's folder.
  ClearUnread(flags.sources.program, &config);
  ValueOrigins written = origins;
  if (!asked.train().load_checkpoint()) written["train.load_checkpoint"] = "launch";
  if (config.train().save_on_sigterm() != asked.train().save_on_sigterm()) written["train.save_on_sigterm"] = "launch";
  files[kClusterConfig] = PrintRunConfig(config, written);
  QUARTET_RETURN_IF_ERROR(MakeDirs(run_dir + "/logs"));
  QUARTET_RETURN_IF_ERROR(MakePrivateFolder(run_dir + "/launch"));
  {
    QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<RunLock> lock, RunLock::Take(run_dir));
    std::error_code none;
    std::filesystem::remove(run_dir + "/launch/failures", none);
    std::filesystem::remove_all(run_dir + "/launch/services", none);  // of an earlier launch, by other programs maybe
    QUARTET_RETURN_IF_ERROR(MakePrivateFolder(run_dir + "/launch/services"));
    for (const auto& [name, text] : files) {
      QUARTET_RETURN_IF_ERROR(AtomicWriteFile(absl::StrCat(run_dir, "/", name), text));
    }
  }
  if (!config.train().save_optimizer()) {
    view.Print(absl::StrCat("warning: train.save_",
                            config.train().save_steps() == 0 ? "steps is 0" : "optimizer is false",
                            ", so that the run has nothing to go on with when it ends early"));
  }
  view.Print(absl::StrCat(slurm ? "batch script: " : "launch plan: ", run_dir, "/", slurm ? kSlurmScript : kRayPlan));
  if (flags.dry_run) return absl::OkStatus();

  // 3. The engine.
  return slurm ? SubmitToSlurm(flags, run_dir, view, cancellation) : BecomeRayDriver(flags, run_dir, programs);
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  std::vector<std::string> words;
  if (quartet::IsOfProgram(argc, argv, &words)) return quartet::BecomeProgram(std::move(words));
  quartet::LaunchFlags flags;
  return quartet::RunProgram(argc, argv, quartet::LaunchCommandLine(&flags),
                             [&](quartet::TerminalView& view, quartet::Cancellation& cancellation) {
                               return quartet::LaunchOnCluster(flags, view, cancellation);
                             });
}
