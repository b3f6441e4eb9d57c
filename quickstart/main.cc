// From nothing to a model that has learned its task by PPO: data, tokenizer, model, fine-tuning, the four services.
#include <filesystem>
#include <numeric>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/division.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/base/time/deadline.h"
#include "core/config/field_paths.h"
#include "core/config/origins/presets.h"
#include "core/config/run_config.h"
#include "core/model/parameter_layout.h"
#include "core/terminal/continue_command.h"
#include "orchestrator/launch/service_launcher.h"
#include "orchestrator/loop/train.h"
#include "orchestrator/offline/train.h"
#include "orchestrator/session/run_program.h"
#include "quickstart/sorting_task.h"

namespace quartet {
namespace {

struct Options {
  uint64_t seed = 42;
  std::string preset;
  std::string run_dir = NewRunDir("quickstart");
  double actor_learning_rate = kSortingActorLearningRate;
  std::string page;
};

CommandLine QuickstartCommandLine(Options* options) {
  return {
      .program = "quickstart",
      .before =
          "quickstart: makes a task, a tokenizer and a tiny model, fine-tunes it, and trains it with PPO until "
          "it solves problems that it has never seen.\n\nUsage: quickstart [flags]\n\nFlags:\n",
      .flags = {{"seed", "N", "Seed of data, model, sampling and shuffling. Default 42.",
                 AtLeast(uint64_t{0}, &options->seed)},
                {"preset", "NAME",
                 "Learns by another method: one of those that orchestrator --help names. Default ppo.",
                 Text(&options->preset)},
                {"run_dir", "FOLDER", "Where everything is written; new or empty. Default runs/quickstart-<time>.",
                 UserPath(&options->run_dir)},
                {"actor_learning_rate", "RATE",
                 "Of PPO's policy updates; 0 gives a baseline that learns nothing. Default 4e-4.",
                 AtLeast(0.0, &options->actor_learning_rate)},
                {"page", "HOST:PORT", "Serve the PPO run's page there; port 0 is a free one.", Text(&options->page)}},
      .after =
          "\nExit codes: 0; 1 where the run failed; 2 for wrong flags; 130, 143 or 129 after SIGINT, SIGTERM or "
          "SIGHUP.\n",
      .check = [options]() -> absl::Status {
        if (options->preset.empty()) return absl::OkStatus();
        QUARTET_ASSIGN_OR_RETURN(const RunConfig preset, ReadPreset(options->preset));
        if (preset.algorithm().kl().init_kl_coef() < 1) return absl::OkStatus();
        return absl::InvalidArgumentError(absl::StrCat("--preset=", options->preset,
                                                       " learns from a teacher, which the quickstart does not have; "
                                                       "what it trains may be one (docs/algorithms.md)"));
      }};
}

// Bytes of the largest group of parameters as it lies in a gathered buffer: each tensor begins at a multiple of 256
// bytes, and the whole is padded so that all ranks have equal parts.
int64_t LargestGroupBytes(int64_t bytes_per_parameter, int64_t ranks) {
  constexpr int64_t kAlignment = 256;
  int64_t largest = 0;
  const ModelConfig config = SortingModelConfig();
  for (HeadKind head : {HeadKind::kVocabulary, HeadKind::kScalar}) {
    for (const ParameterGroup& group : MakeParameterLayout(config, head).groups) {
      int64_t bytes = ranks * kAlignment;
      for (const ParameterSpec& parameter : group.parameters) {
        bytes += RoundUp(parameter.numel() * bytes_per_parameter, kAlignment);
      }
      largest = std::max(largest, bytes);
    }
  }
  return largest;
}

// ZeRO-3's promise, held against what each rank of the trainers and the scorer has measured: never more than two groups
// of parameters are gathered.
absl::Status CheckGatheredMemory(const PpoResult& result, TerminalView& view) {
  for (const auto& [service, info] : result.services) {
    // A rollout holds its weights whole, and so does a scorer of rules alone none.
    if (service == "rollout" || info.ranks_size() == 0 || info.ranks(0).model_parameters() == 0) continue;
    int64_t peak = -1;
    int64_t bound = 0;
    int64_t whole = 0;
    for (const RankInfo& rank : info.ranks()) {
      bound = 2 * LargestGroupBytes(rank.gathered_bytes_per_parameter(), info.ranks_size());
      whole = rank.model_parameters() * rank.gathered_bytes_per_parameter();
      for (const MemoryUse& use : rank.memory()) {
        if (use.category() == "gathered") peak = std::max(peak, use.peak_bytes());
      }
    }
    if (peak <= 0) {
      return absl::InternalError(absl::StrCat(service, " reports no gathered memory, but its parameters are sharded"));
    }
    if (peak > bound) {
      return absl::InternalError(absl::StrCat(service, " gathered ", peak,
                                              " bytes of parameters at once; two groups "
                                              "are at most ",
                                              bound));
    }
    view.Print(absl::StrFormat("%s: at most %d of %d bytes of parameters were gathered at once (bound %d)", service,
                               peak, whole, bound));
  }
  return absl::OkStatus();
}

double Mean(const std::vector<double>& values, size_t begin, size_t end) {
  return std::accumulate(values.begin() + begin, values.begin() + end, 0.0) / static_cast<double>(end - begin);
}

// Of what is set in a configuration that is not resolved yet.
ValueOrigins OriginsOf(const RunConfig& config) {
  ValueOrigins origins;
  for (const auto& [path, value] : FlatFields(config)) origins[path] = "quickstart";
  return origins;
}

// Of the policy in the folder `policy`, with what the user asked for; resolved.
absl::StatusOr<RunConfig> PpoConfig(const Options& options, const SortingTaskFiles& files, const std::string& policy,
                                    ValueOrigins* origins) {
  RunConfig config = SortingPpoConfig(files, policy, options.run_dir, options.seed, options.actor_learning_rate);
  if (!options.preset.empty()) {
    QUARTET_ASSIGN_OR_RETURN(const RunConfig preset, ReadPreset(options.preset));
    UseMethod(preset, &config);
  }
  config.mutable_monitor()->set_listen(options.page);
  *origins = OriginsOf(config);
  QUARTET_RETURN_IF_ERROR(ResolveRunConfig(&config, ""));
  return config;
}

absl::Status Run(const Options& options, TerminalView& view, Cancellation& cancellation) {
  const Deadline::Clock::time_point start = Deadline::Clock::now();
  const std::string programs = ServiceLauncher::DefaultProgramsFolder();
  const std::string preparation = options.run_dir + "/start";
  if (ReadFile(options.run_dir + "/run.textproto").ok() || ReadFile(preparation + "/train.jsonl").ok()) {
    return absl::AlreadyExistsError(absl::StrCat(options.run_dir, " holds a run already; give another --run_dir"));
  }
  QUARTET_RETURN_IF_ERROR(RunFolder::CheckFree(options.run_dir, ""));
  // What cannot run is refused before anything is made.
  const SortingTaskFiles to_come = {
      .model = preparation, .sft = preparation, .train = preparation, .heldout = preparation};
  ValueOrigins ppo_origins;
  QUARTET_RETURN_IF_ERROR(PpoConfig(options, to_come, preparation, &ppo_origins).status());

  view.Print("1. Data, tokenizer and a random model");
  SortingTaskFiles files;
  QUARTET_RETURN_IF_ERROR(WriteSortingTask(preparation, options.seed, &files));

  view.Print("2. Supervised fine-tuning on demonstrations, of which three in ten are right");
  RunConfig sft = SortingSftConfig(files, preparation + "/sft", options.seed);
  const ValueOrigins sft_origins = OriginsOf(sft);
  QUARTET_RETURN_IF_ERROR(ResolveRunConfig(&sft, "", Program::kSft));
  QUARTET_ASSIGN_OR_RETURN(
      const std::string fine_tuned,
      TrainOnRows(RunSession(Program::kSft, sft, {.launch = true, .origins = sft_origins}, view, cancellation)));
  const Deadline::Clock::time_point fine_tuning_end = Deadline::Clock::now();

  QUARTET_ASSIGN_OR_RETURN(const RunConfig ppo,
                           PpoConfig(options, files, absl::StrCat(sft.run_dir(), "/", fine_tuned), &ppo_origins));
  view.Print(absl::StrCat("3. ", options.preset.empty() ? "PPO" : options.preset, " with ",
                          absl::StrJoin(PpoServices(ppo), ", "), ", two ranks each"));
  QUARTET_ASSIGN_OR_RETURN(
      const PpoResult result,
      TrainByPpo(RunSession(Program::kPpo, ppo, {.launch = true, .allowed_entry = "start", .origins = ppo_origins},
                            view, cancellation)));

  view.Print("4. What came of it");
  QUARTET_RETURN_IF_ERROR(CheckGatheredMemory(result, view));
  const std::vector<double>& rewards = result.summary.mean_rewards;
  const size_t window = std::min<size_t>(3, rewards.size());
  view.Print(absl::StrFormat("mean reward: %.3f in the first %d steps, %.3f in the last %d", Mean(rewards, 0, window),
                             window, Mean(rewards, rewards.size() - window, rewards.size()), window));
  view.Print(absl::StrFormat("held-out problems solved: %.1f %% before PPO, %.1f %% after",
                             100 * result.summary.before.at(0).pass_at_1().value_or(0),
                             100 * result.summary.after.at(0).pass_at_1().value_or(0)));
  const Deadline::Clock::time_point end = Deadline::Clock::now();
  const auto seconds = [](Deadline::Clock::duration spent) { return std::chrono::duration<double>(spent).count(); };
  view.Print(absl::StrFormat("time: %.0f s (fine-tuning %.0f s, PPO %.0f s)", seconds(end - start),
                             seconds(fine_tuning_end - start), seconds(end - fine_tuning_end)));
  view.Print(absl::StrCat(
      "\nEverything is in ", options.run_dir, ":\n",
      "  checkpoints/latest/policy   the trained model, a Hugging Face folder\n",
      "  report.html                 the run's page, for a browser\n",
      "  metrics.jsonl               the numbers of each step; tensorboard --logdir ", options.run_dir, " shows them\n",
      "  samples.jsonl               what the model answered\n",
      "  heldout.jsonl               what it was asked in the evaluation\n",
      "  run.textproto               the configuration, all options with their values\n",
      "  logs/                       one file a service\n",
      "  start/                      data, the random model and the fine-tuned one\n", "\nNext:\n",
      "  change an option   ", RunCommand("//orchestrator", programs + "/orchestrator/orchestrator"),
      " --launch --config=", options.run_dir, "/run.textproto --set=run_dir=runs/second --set=train.max_steps=20\n",
      "  your own model     README.md, \"Your own model, data and reward\""));
  const std::string real_model = programs + "/orchestrator/smollm2_arithmetic";
  std::error_code ignored;
  if (std::filesystem::exists(real_model, ignored)) {  // in a bundle it is not
    view.Print("  a real model       " + RunCommand("//orchestrator:smollm2_arithmetic", real_model));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) {
  quartet::Options options;
  return quartet::RunProgram(argc, argv, quartet::QuickstartCommandLine(&options),
                             [&](auto& view, auto& cancellation) { return quartet::Run(options, view, cancellation); });
}
