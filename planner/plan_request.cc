#include "planner/plan_request.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/config/field_paths.h"
#include "core/config/services.h"
#include "orchestrator/checks/input_check.h"

namespace quartet {
namespace {

FlagTarget Mebibytes(std::optional<int64_t>* bytes) {
  return {.store =
              [bytes](const std::string& text) {
                int64_t value = 0;
                if (!absl::SimpleAtoi(text, &value) || value < 0 || value > (int64_t{1} << 30)) return false;
                *bytes = value << 20;
                return true;
              },
          .allowed = "whole mebibytes, at least 0"};
}

// An error of a configuration that says too little of a whole run, with the flags that plan what it says enough of.
absl::Status WithServicesToPlan(const absl::Status& error, const RunConfig& config,
                                const std::vector<std::string>& services) {
  std::string flags;
  for (const std::string& service : services) {
    const absl::StatusOr<Program> program = ServiceProgram(service);
    if (program.ok() && CheckFor(config, *program).ok()) absl::StrAppend(&flags, " --service=", service);
  }
  if (flags.empty()) return error;
  return absl::Status(error.code(), absl::StrCat(error.message(), "; or", flags, " to plan no other service"));
}

}  // namespace

CommandLine PlanCommandLine(PlanRequest* request) {
  return {
      .program = "plan",
      .before =
          "plan: tells what memory a run will take of each GPU and host, what would make it fit, or what it would fit "
          "on, and how long a step takes at least. Runs the engines' own code on LibTorch's meta device; of a model it "
          "reads config.json alone.\n\nUsage: plan --config=FILE [flags]\n\nFlags:\n",
      .flags =
          {{"preset", "NAME", "A method by its name (orchestrator --help): what it sets, --config and --set go over.",
            Text(&request->sources.preset)},
           {"config", "FILE", "The run's configuration, a RunConfig in protobuf text format.",
            Text(&request->sources.file)},
           {"set", "PATH=VALUE", "Overrides one field, for example --set=actor.zero_stage=3. May be repeated.",
            Texts(&request->sources.overrides)},
           {"program", "NAME", "The run that is planned: ppo (default), sft, dpo or reward_model.",
            OneOf(kRunPrograms, &request->sources.program)},
           {"service", "NAME", "Plans this service. May be repeated; default: all that the run has.",
            Texts(&request->services)},
           {"search", "WHAT", "\"gpus\": the fewest GPUs that it fits on; \"batch\": the fullest micro-batches.",
            OneOf<PlanRequest::Search>({{"gpus", PlanRequest::Search::kGpus}, {"batch", PlanRequest::Search::kBatch}},
                                       &request->search)},
           {"format", "NAME",
            "\"text\" (default), or \"json\": the plan and how each rank is started, without suggestions.",
            OneOf<bool>({{"text", false}, {"json", true}}, &request->json)},
           {"tflops", "N",
            "What a GPU computes in a second, in 10^12 operations, instead of what its datasheet states of the models' "
            "types.",
            Positive(&request->flops, 1e12)},
           {"gb_per_second", "N",
            "What a GPU reads of its memory in a second, in 10^9 bytes, instead of its datasheet's.",
            Positive(&request->bytes_per_second, 1e9)},
           {"process_mib", "N", "What a rank's process takes beside tensors, instead of the measured figure.",
            Mebibytes(&request->process_bytes)},
           {"cuda_mib", "N", "What CUDA and NCCL take on a GPU for a rank, instead of the published figures.",
            Mebibytes(&request->cuda_bytes)}},
      .after = "\nExit codes: 0 where it fits; 3 where it does not; 2 for a wrong configuration.\n",
      .check = [request] {
        if (!request->json || (!request->flops.has_value() && !request->bytes_per_second.has_value())) {
          return absl::OkStatus();
        }
        return absl::InvalidArgumentError("--tflops and --gb_per_second have no effect with --format=json");
      }};
}

absl::Status LoadPlanRequest(PlanRequest* request) {
  QUARTET_ASSIGN_OR_RETURN(request->config, LoadRunConfig(request->sources, ""));
  const std::vector<std::string> all = ServicesOf(request->sources.program, request->config);
  if (request->sources.program != Program::kPpo) {
    if (request->flops.has_value() || request->bytes_per_second.has_value()) {
      return absl::InvalidArgumentError("--tflops and --gb_per_second have an effect on PPO's steps only");
    }
    QUARTET_RETURN_IF_ERROR(CheckFor(request->config, request->sources.program));
  }
  const bool plans_all = request->services.empty();
  if (plans_all) request->services = all;
  for (const std::string& service : request->services) {
    QUARTET_ASSIGN_OR_RETURN(const Program program, ServiceProgram(service));
    if (request->sources.program == Program::kPpo) {
      const absl::Status checked = CheckFor(request->config, program);
      if (!checked.ok()) return plans_all ? WithServicesToPlan(checked, request->config, all) : checked;
    } else if (std::find(all.begin(), all.end(), service) == all.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--service=", service,
                                                     " is not of --program=", RunProgramName(request->sources.program),
                                                     ", which has ", absl::StrJoin(all, ", ")));
    }
  }
  return CheckModelConfigs(request->config, request->services);
}

std::vector<std::string> ConfigArguments(const PlanRequest& request) {
  const ConfigSources& sources = request.sources;
  std::vector<std::string> arguments;
  if (!sources.preset.empty()) arguments.push_back("--preset=" + sources.preset);
  if (!sources.file.empty()) arguments.push_back("--config=" + ResolveUserPath(sources.file));
  const std::map<std::string, std::string> resolved = FlatFields(request.config);
  const auto path_in = [&resolved](const std::string& field) {
    const auto found = resolved.find(field);
    return found != resolved.end() && absl::StartsWith(found->second, "\"/") ? found->second : "";
  };
  std::set<std::string> lists;
  for (const std::string& override : sources.overrides) {
    const size_t equals = override.find('=');
    const std::string field = override.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : override.substr(equals + 1);
    if (path_in(field) == absl::StrCat("\"", ResolveUserPath(value), "\"")) {
      arguments.push_back(absl::StrCat("--set=", field, "=", ResolveUserPath(value)));
    } else if (!value.empty() && !path_in(field + ".0").empty()) {
      if (!lists.insert(field).second) continue;  // they are there with the first
      std::vector<std::string> paths;
      for (std::string path; !(path = path_in(absl::StrCat(field, ".", paths.size()))).empty();) paths.push_back(path);
      arguments.push_back(absl::StrCat("--set=", field, "=[", absl::StrJoin(paths, ", "), "]"));
    } else {
      arguments.push_back("--set=" + override);
    }
  }
  return arguments;
}

}  // namespace quartet
