// Makes the plan that //orchestrator:plan was asked for and prints it. Takes the same flags, which are in order.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/config/gpus.h"
#include "core/hardware/topology.h"
#include "orchestrator/launch/launch_plan.h"
#include "orchestrator/launch/service_launcher.h"
#include "planner/plan.h"
#include "planner/plan_request.h"
#include "planner/report.h"
#include "planner/search.h"
#include "planner/step_time.h"
#include "proto/run_config.pb.h"

namespace quartet {
namespace {

constexpr int kDoesNotFit = 3;

// The rates of the cluster's GPU, with what is asked for instead.
GpuRates Rates(const PlanRequest& request, const RunConfig& config) {
  GpuRates rates = RatesOf(config);
  if (request.flops.has_value()) rates.bf16_flops = rates.fp32_flops = *request.flops;
  rates.bytes = request.bytes_per_second.value_or(rates.bytes);
  return rates;
}

OutsideTensors Outside(const PlanRequest& request) {
  OutsideTensors outside = DefaultOutsideTensors();
  outside.process = request.process_bytes.value_or(outside.process);
  outside.process_on_gpu = request.process_bytes.value_or(outside.process_on_gpu);
  if (request.cuda_bytes.has_value()) {
    outside.cuda_context = *request.cuda_bytes;
    outside.nccl_of_two = outside.nccl_of_more = 0;
  }
  return outside;
}

// The plan, and where it fits and all is on GPUs what a step takes.
absl::Status Print(const PlanRequest& request, const RunConfig& config, const Plan& plan) {
  std::printf("%s", PrintPlan(config, plan).c_str());
  if (!plan.fits() || request.sources.program != Program::kPpo) return absl::OkStatus();
  const GpuRates rates = Rates(request, config);
  const auto step = EstimateStep(config, plan, rates);
  if (step.ok()) {
    std::printf("%s", PrintStepTime(config, *step, rates).c_str());
  } else if (request.flops.has_value() || request.bytes_per_second.has_value()) {
    return step.status();
  } else {
    std::printf("\nNo estimate of what a PPO step takes: %s\n", std::string(step.status().message()).c_str());
  }
  std::fflush(stdout);
  return absl::OkStatus();
}

// Without a cluster: what the run takes of this machine where it is on CPUs, and the GPUs that it fits on.
absl::StatusOr<bool> PlanAnywhere(const PlanRequest& request, Planner& planner) {
  const RunConfig& config = request.config;
  bool on_gpus = false;
  for (const std::string& service : planner.services()) on_gpus = on_gpus || OnGpu(config, service);
  if (!on_gpus) {
    QUARTET_ASSIGN_OR_RETURN(const Plan plan, planner.MakePlan(config));
    QUARTET_RETURN_IF_ERROR(Print(request, config, plan));
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
  QUARTET_RETURN_IF_ERROR(Print(request, first.config, first.plan));
  return true;
}

absl::StatusOr<bool> Search(const PlanRequest& request, Planner& planner) {
  const auto found = request.search == PlanRequest::Search::kGpus ? FewestGpus(planner, request.config)
                                                                  : LargestMicroBatch(planner, request.config);
  if (absl::IsNotFound(found.status())) {
    std::printf("%s\n", std::string(found.status().message()).c_str());
    return false;
  }
  if (!found.ok()) return found.status();
  QUARTET_RETURN_IF_ERROR(Print(request, found->config, found->plan));
  std::printf("\nFound:\n%s", PrintSuggestions({*found}).c_str());
  return true;
}

// How the ranks of what was asked for are started: nodes as the cluster says, without one this host.
absl::StatusOr<std::vector<RankLaunch>> Launch(const PlanRequest& request) {
  const RunConfig& config = request.config;
  QUARTET_ASSIGN_OR_RETURN(
      std::vector<RankLaunch> launch,
      MakeLaunchPlan(config, request.services, config.has_cluster() ? TopologyOf(config.cluster()) : ReadTopology(),
                     ServiceLauncher::DefaultProgramsFolder(), ConfigArguments(request)));
  // Where relative paths in the file start, wherever a rank is started.
  for (RankLaunch& rank : launch) rank.environment["BUILD_WORKING_DIRECTORY"] = ResolveUserPath(".");
  return launch;
}

// Whether it fits.
absl::StatusOr<bool> Run(const PlanRequest& request) {
  Planner planner(request.services, Outside(request), request.sources.program);
  const RunConfig& config = request.config;
  if (request.search != PlanRequest::Search::kNone) return Search(request, planner);
  if (!request.json && !config.has_cluster()) return PlanAnywhere(request, planner);
  QUARTET_ASSIGN_OR_RETURN(const Plan plan, planner.MakePlan(config));
  if (request.json) {
    QUARTET_ASSIGN_OR_RETURN(const std::vector<RankLaunch> launch, Launch(request));
    std::printf("%s", PlanAsJson(plan, launch).c_str());
    return plan.fits();
  }
  QUARTET_RETURN_IF_ERROR(Print(request, config, plan));
  if (plan.excess() == 0) return true;
  QUARTET_ASSIGN_OR_RETURN(const std::vector<Suggestion> suggestions, Suggest(planner, config, plan));
  if (suggestions.empty()) {
    std::printf("\nIt %s, and no change that was tried leaves 5 %% free.\n", plan.fits() ? "is tight" : "does not fit");
  } else {
    std::printf("\nIt %s. Planned again with each of these lines, it fits, with 5 %% free:\n%s",
                plan.fits() ? "is tight" : "does not fit", PrintSuggestions(suggestions).c_str());
  }
  return plan.fits();
}

int Main(int argc, char** argv) {
  InitLogging(argv[0], "plan", -1);
  PlanRequest request;
  if (const auto code = ReadCommandLine(argc, argv, PlanCommandLine(&request))) return *code;
  if (const absl::Status asked = LoadPlanRequest(&request); !asked.ok()) return Finish("plan", asked);
  const absl::StatusOr<bool> fits = Run(request);
  if (!fits.ok()) return Finish("plan", fits.status());
  return *fits ? 0 : kDoesNotFit;
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) { return quartet::Main(argc, argv); }
