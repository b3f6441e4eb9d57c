// Tells what memory a run will take, before anything starts.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/config/gpus.h"
#include "core/config/origins.h"
#include "core/config/run_config.h"
#include "orchestrator/planner/plan.h"
#include "orchestrator/planner/report.h"
#include "orchestrator/planner/search.h"
#include "orchestrator/planner/step_time.h"
#include "orchestrator/terminal/command_line.h"
#include "proto/run_config.pb.h"

namespace quartet {
namespace {

constexpr int kDoesNotFit = 3;

const std::vector<FlagSpec>& Flags() {
  static const std::vector<FlagSpec> flags = {
      {"preset", "NAME", "A method by its name (orchestrator --help): what it sets, --config and --set go over."},
      {"config", "FILE", "The run's configuration, a RunConfig in protobuf text format."},
      {"set", "PATH=VALUE", "Overrides one field, for example --set=actor.zero_stage=3. May be repeated.", true},
      {"service", "NAME", "Plans this service. May be repeated; default: all that the run has.", true},
      {"search", "WHAT", "\"gpus\": the fewest GPUs that it fits on; \"batch\": the fullest micro-batches."},
      {"json", "", "Prints the plan as JSON, without suggestions."},
      {"tflops", "N",
       "What a GPU computes in a second, in 10^12 operations, instead of what its datasheet states of the models' "
       "types."},
      {"gb_per_second", "N", "What a GPU reads of its memory in a second, in 10^9 bytes, instead of its datasheet's."},
      {"process_mib", "N", "What a rank's process takes beside tensors, instead of the measured figure."},
      {"cuda_mib", "N", "What CUDA and NCCL take on a GPU for a rank, instead of the published figures."},
  };
  return flags;
}

absl::StatusOr<int64_t> Mebibytes(const CommandLine& flags, const std::string& name, int64_t otherwise) {
  const auto text = flags.Get(name);
  if (!text.has_value()) return otherwise;
  int64_t value = 0;
  if (!absl::SimpleAtoi(*text, &value) || value < 0 || value > (int64_t{1} << 30)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, " is \"", *text, "\"; allowed: whole mebibytes, at least 0"));
  }
  return value << 20;
}

// The rates of the cluster's GPU, with what the flags say instead.
absl::StatusOr<GpuRates> Rates(const CommandLine& flags, const RunConfig& config) {
  GpuRates rates = RatesOf(config);
  const auto read = [&](const char* name, double unit, double* rate) -> absl::Status {
    const auto text = flags.Get(name);
    if (!text.has_value()) return absl::OkStatus();
    if (!absl::SimpleAtod(*text, rate) || !(*rate > 0) || !std::isfinite(*rate)) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " is \"", *text, "\"; allowed: a number above 0"));
    }
    *rate *= unit;
    return absl::OkStatus();
  };
  QUARTET_RETURN_IF_ERROR(read("tflops", 1e12, &rates.bf16_flops));
  if (flags.Has("tflops")) rates.fp32_flops = rates.bf16_flops;
  QUARTET_RETURN_IF_ERROR(read("gb_per_second", 1e9, &rates.bytes));
  return rates;
}

// The plan, and where it fits and all is on GPUs what a step takes.
absl::Status Print(const CommandLine& flags, const RunConfig& config, const Plan& plan) {
  std::printf("%s", PrintPlan(config, plan).c_str());
  QUARTET_ASSIGN_OR_RETURN(const GpuRates rates, Rates(flags, config));
  if (!plan.fits()) return absl::OkStatus();
  const auto step = EstimateStep(config, plan, rates);
  if (step.ok()) {
    std::printf("%s", PrintStepTime(config, *step, rates).c_str());
  } else if (flags.Has("tflops") || flags.Has("gb_per_second")) {
    return step.status();
  } else {
    std::printf("\nNo estimate of what a PPO step takes: %s\n", std::string(step.status().message()).c_str());
  }
  std::fflush(stdout);
  return absl::OkStatus();
}

// Without a cluster: what the run takes of this machine where it is on CPUs, and the GPUs that it fits on.
absl::StatusOr<bool> PlanAnywhere(const CommandLine& flags, const RunConfig& config, Planner& planner) {
  bool on_gpus = false;
  for (const std::string& service : planner.services()) on_gpus = on_gpus || OnGpu(config, service);
  if (!on_gpus) {
    QUARTET_ASSIGN_OR_RETURN(const Plan plan, planner.MakePlan(config));
    QUARTET_RETURN_IF_ERROR(Print(flags, config, plan));
  }
  QUARTET_ASSIGN_OR_RETURN(const std::vector<Suggestion> offers, WhatToRent(planner, config));
  if (offers.empty()) {
    std::printf("\nIt does not fit on any of the GPUs that are known: %s\n", KnownGpuNames().c_str());
    return !on_gpus;
  }
  std::printf("\n%s", PrintOffers(offers).c_str());
  if (!on_gpus) return true;
  const Suggestion& first = offers.front();
  const ClusterConfig& cluster = first.config.cluster();
  std::printf("\nOn %d x %d %s:\n\n", cluster.num_nodes(), cluster.num_gpus_per_node(), cluster.gpu().c_str());
  QUARTET_RETURN_IF_ERROR(Print(flags, first.config, first.plan));
  return true;
}

absl::StatusOr<bool> Run(const CommandLine& flags) {
  const std::string search = flags.Get("search").value_or("");
  if (search != "" && search != "gpus" && search != "batch") {
    return absl::InvalidArgumentError(absl::StrCat("--search is \"", search, "\"; allowed: gpus, batch"));
  }
  auto config =
      LoadRunConfig({flags.Get("preset").value_or(""), flags.Get("config").value_or(""), flags.GetAll("set")}, "");
  if (!config.ok()) return config.status();
  std::vector<std::string> services = flags.GetAll("service");
  if (services.empty()) services = PpoServices(*config);
  OutsideTensors outside = DefaultOutsideTensors();
  auto process = Mebibytes(flags, "process_mib", outside.process);
  if (!process.ok()) return process.status();
  outside.process = *process;
  if (flags.Has("cuda_mib")) {
    auto cuda = Mebibytes(flags, "cuda_mib", 0);
    if (!cuda.ok()) return cuda.status();
    outside.cuda_context = *cuda;
    outside.nccl_of_two = outside.nccl_of_more = 0;
  }

  Planner planner(services, outside);
  if (!search.empty()) {
    auto found = search == "gpus" ? FewestGpus(planner, *config) : LargestMicroBatch(planner, *config);
    if (absl::IsNotFound(found.status())) {
      std::printf("%s\n", std::string(found.status().message()).c_str());
      return false;
    }
    if (!found.ok()) return found.status();
    QUARTET_RETURN_IF_ERROR(Print(flags, found->config, found->plan));
    std::printf("\nFound:\n%s", PrintSuggestions({*found}).c_str());
    return true;
  }
  const bool json = flags.Has("json");
  if (json && (flags.Has("tflops") || flags.Has("gb_per_second"))) {
    return absl::InvalidArgumentError("--tflops and --gb_per_second have no effect with --json");
  }
  if (!json && !config->has_cluster()) return PlanAnywhere(flags, *config, planner);
  auto plan = planner.MakePlan(*config);
  if (!plan.ok()) return plan.status();
  if (json) {
    std::printf("%s", PlanAsJson(*plan).c_str());
    return plan->fits();
  }
  QUARTET_RETURN_IF_ERROR(Print(flags, *config, *plan));
  if (plan->fits()) return true;
  auto suggestions = Suggest(planner, *config, *plan);
  if (!suggestions.ok()) return suggestions.status();
  if (suggestions->empty()) {
    std::printf("\nIt does not fit, and no change that was tried makes it fit.\n");
  } else {
    std::printf("\nIt does not fit. Planned again with each of these lines, it does:\n%s",
                PrintSuggestions(*suggestions).c_str());
  }
  return false;
}

int Fail(const absl::Status& status) {
  QUARTET_LOG(kError) << status.message();
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? 2 : 1;
}

int Main(int argc, char** argv) {
  InitLogging(argv[0], "plan", -1);
  absl::StatusOr<CommandLine> flags = CommandLine::Parse(argc, argv, Flags());
  if (!flags.ok()) return Fail(flags.status());
  if (flags->help()) {
    std::printf(
        "plan: tells what memory a run will take of each GPU and host, what would make it fit, or what it would fit "
        "on, "
        "and how long a step takes at least. Runs the engines' own code on LibTorch's meta device; of a model it reads "
        "config.json alone.\n\nUsage: plan --config=FILE [flags]\n\nFlags:\n%s\nExit codes: 0 where it fits; %d where "
        "it does not; 2 for a wrong configuration.\n",
        CommandLine::Describe(Flags()).c_str(), kDoesNotFit);
    return 0;
  }
  const absl::StatusOr<bool> fits = Run(*flags);
  if (!fits.ok()) return Fail(fits.status());
  return *fits ? 0 : kDoesNotFit;
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) { return quartet::Main(argc, argv); }
