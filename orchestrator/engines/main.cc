// Starts a PPO run and its services where they are to run: here, or on a cluster that another system runs.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/files.h"
#include "core/base/status_macros.h"
#include "core/config/origins/origins.h"
#include "orchestrator/engines/slurm/job.h"
#include "orchestrator/engines/slurm/job_script.h"
#include "orchestrator/loop/train.h"
#include "orchestrator/run_folder/run_lock.h"
#include "orchestrator/session/run_program.h"

namespace quartet {
namespace {

struct LaunchFlags {
  std::string engine;
  ConfigSources sources;
  SlurmOptions slurm;
  bool dry_run = false;
  bool detach = false;
};

CommandLine LaunchCommandLine(LaunchFlags* flags) {
  return {
      .program = "launch",
      .before =
          "launch: starts a PPO run and its services where they are to run.\n\n"
          "Usage: launch --engine=process --config=FILE [flags of the orchestrator]\n"
          "       launch --engine=slurm --config=FILE [flags]\n\n"
          "On this host (\"process\", the default) it is the orchestrator with --launch; its --help tells the "
          "flags. With\nSlurm:\n",
      .flags = {{"engine", "NAME", "What starts the processes: process or slurm.",
                 OneOf<std::string>({{"process", "process"}, {"slurm", "slurm"}}, &flags->engine)},
                {"preset", "NAME", "As the orchestrator's.", Text(&flags->sources.preset)},
                {"config", "FILE",
                 "The run's configuration. Its `cluster` says what nodes there are, services.*.num_nodes and\n"
                 "num_gpus_per_node what each service has of them.",
                 Text(&flags->sources.file)},
                {"set", "PATH=VALUE", "Overrides one field. May be repeated.", Texts(&flags->sources.overrides)},
                {"sbatch", "OPTION",
                 "An option of sbatch for the nodes of the services, such as --sbatch=--partition=gpu or\n"
                 "--sbatch=--time=24:00:00. May be repeated.",
                 Texts(&flags->slurm.sbatch)},
                {"orchestrator_sbatch", "OPTION",
                 "The same for a node that the orchestrator is to have to itself. Default: it runs on the first\n"
                 "node of the services.",
                 Texts(&flags->slurm.orchestrator_sbatch)},
                {"max_restarts", "N",
                 "A run that fails is queued again, at most N times without a new checkpoint between. Default 3.",
                 AtLeast(0, &flags->slurm.max_restarts)},
                {"detach", "", "Leave the job to itself once it is submitted.", Switch(&flags->detach)},
                {"dry_run", "", "Write the batch script, and submit nothing.", Switch(&flags->dry_run)}},
      .after =
          "\nCtrl-C ends the watching of a job, not the job.\n\nExit codes: 0; 1 where the run failed; 2 for a wrong "
          "configuration or wrong data; 130 after SIGINT or SIGTERM, and\nwhere the job was cancelled.\n"};
}

// Whether the flags are of the orchestrator, which has more; `words` are those for it.
bool IsOfOrchestrator(int argc, char** argv, std::vector<std::string>* words) {
  std::string engine = "process";
  bool help = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.substr(0, 9) == "--engine=") {
      engine = word.substr(9);
    } else if (word == "--engine" && i + 1 < argc) {
      engine = argv[++i];
    } else {
      help = help || word == "--help" || word == "--version";
      words->push_back(argv[i]);
    }
  }
  return engine == "process" && !help;
}

int BecomeOrchestrator(std::vector<std::string> words) {
  const std::string program = ServiceLauncher::DefaultProgramsFolder() + "/orchestrator/orchestrator";
  words.insert(words.begin(), {program, "--launch"});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(program.c_str(), arguments.data());
  return Finish("launch", absl::InternalError(absl::StrCat("cannot run ", program, ": ", strerror(errno))));
}

// The run's configuration as the job's programs read it.
absl::StatusOr<RunConfig> OnSlurm(const LaunchFlags& flags, const ValueOrigins& origins) {
  QUARTET_ASSIGN_OR_RETURN(RunConfig config, LoadRunConfig(flags.sources, ""));
  ConfigSources sources = flags.sources;
  // Whatever comes, the job goes on with what there is.
  sources.overrides.push_back("train.load_checkpoint=true");
  if (origins.count("train.save_on_sigterm") == 0 &&
      (origins.count("train.save_optimizer") == 0 || config.train().save_optimizer())) {
    sources.overrides.push_back("train.save_on_sigterm=true");
  }
  return LoadRunConfig(sources, "");
}

absl::Status LaunchOnSlurm(const LaunchFlags& flags, TerminalView& view, Cancellation& cancellation) {
  // 1. Whatever is wrong is found before the job is queued, and not after hours of waiting.
  if (!flags.dry_run) QUARTET_RETURN_IF_ERROR(CheckSlurm());
  QUARTET_ASSIGN_OR_RETURN(const ValueOrigins origins, OriginsOf(flags.sources));
  QUARTET_RETURN_IF_ERROR(CheckSaysRunDir(origins));
  QUARTET_ASSIGN_OR_RETURN(const RunConfig asked, LoadRunConfig(flags.sources, ""));
  QUARTET_ASSIGN_OR_RETURN(RunConfig config, OnSlurm(flags, origins));
  QUARTET_ASSIGN_OR_RETURN(const std::string script,
                           SlurmJobScript(config, origins, ServiceLauncher::DefaultProgramsFolder(), flags.slurm));
  RunSession session(asked, {.origins = origins}, view, cancellation);
  QUARTET_RETURN_IF_ERROR(CheckPpo(session));

  // 2. What the job reads, in the run's folder.
  ClearUnread(Program::kPpo, &config);
  const std::string& run_dir = config.run_dir();
  const std::string log = absl::StrCat(run_dir, "/", kSlurmLog);
  for (const char* folder : {"/launch", "/logs"}) QUARTET_RETURN_IF_ERROR(MakeDirs(run_dir + folder));
  {
    QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<RunLock> lock, RunLock::Take(run_dir));
    QUARTET_RETURN_IF_ERROR(AtomicWriteFile(absl::StrCat(run_dir, "/", kSlurmConfig), PrintRunConfig(config, origins)));
    QUARTET_RETURN_IF_ERROR(AtomicWriteFile(absl::StrCat(run_dir, "/", kSlurmScript), script));
    std::error_code none;
    std::filesystem::remove(run_dir + "/launch/failures", none);
  }
  view.Print(absl::StrCat("batch script: ", run_dir, "/", kSlurmScript));
  if (flags.dry_run) return absl::OkStatus();

  // 3. The job.
  std::error_code none;
  const uintmax_t earlier = std::filesystem::file_size(log, none);
  QUARTET_ASSIGN_OR_RETURN(const std::string id, SubmitSlurmJob(absl::StrCat(run_dir, "/", kSlurmScript)));
  view.Print(absl::StrCat("submitted: job ", id, "; \"scancel ", id, "\" ends it"));
  if (flags.detach) return absl::OkStatus();
  return FollowSlurmJob(id, log, none ? 0 : static_cast<int64_t>(earlier), view, cancellation);
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  std::vector<std::string> words;
  if (quartet::IsOfOrchestrator(argc, argv, &words)) return quartet::BecomeOrchestrator(std::move(words));
  quartet::LaunchFlags flags;
  return quartet::RunProgram(argc, argv, quartet::LaunchCommandLine(&flags),
                             [&](quartet::TerminalView& view, quartet::Cancellation& cancellation) {
                               return quartet::LaunchOnSlurm(flags, view, cancellation);
                             });
}
