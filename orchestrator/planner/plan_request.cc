#include "orchestrator/planner/plan_request.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/config/origins/origins.h"
#include "core/config/run_config.h"
#include "core/config/services.h"
#include "orchestrator/checks/input_check.h"

namespace quartet {
namespace {

absl::Status ReadMebibytes(const CommandLine& flags, const std::string& name, std::optional<int64_t>* bytes) {
  const auto text = flags.Get(name);
  if (!text.has_value()) return absl::OkStatus();
  int64_t value = 0;
  if (!absl::SimpleAtoi(*text, &value) || value < 0 || value > (int64_t{1} << 30)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, " is \"", *text, "\"; allowed: whole mebibytes, at least 0"));
  }
  *bytes = value << 20;
  return absl::OkStatus();
}

absl::Status ReadRate(const CommandLine& flags, const std::string& name, double unit, std::optional<double>* rate) {
  const auto text = flags.Get(name);
  if (!text.has_value()) return absl::OkStatus();
  double value = 0;
  if (!absl::SimpleAtod(*text, &value) || !(value > 0) || !std::isfinite(value)) {
    return absl::InvalidArgumentError(absl::StrCat("--", name, " is \"", *text, "\"; allowed: a number above 0"));
  }
  *rate = value * unit;
  return absl::OkStatus();
}

absl::StatusOr<PlanRequest::Search> ReadSearch(const CommandLine& flags) {
  const std::string text = flags.Get("search").value_or("");
  if (text.empty()) return PlanRequest::Search::kNone;
  if (text == "gpus") return PlanRequest::Search::kGpus;
  if (text == "batch") return PlanRequest::Search::kBatch;
  return absl::InvalidArgumentError(absl::StrCat("--search is \"", text, "\"; allowed: gpus, batch"));
}

absl::StatusOr<Program> ReadProgram(const CommandLine& flags) {
  const std::string text = flags.Get("program").value_or("ppo");
  if (text == "ppo") return Program::kPpo;
  if (text == "sft") return Program::kSft;
  if (text == "dpo") return Program::kDpo;
  if (text == "reward_model") return Program::kRewardModel;
  return absl::InvalidArgumentError(absl::StrCat("--program is \"", text, "\"; allowed: ppo, sft, dpo, reward_model"));
}

std::vector<std::string> ServicesOf(Program program, const RunConfig& config) {
  switch (program) {
    case Program::kSft:
      return kSftServices;
    case Program::kDpo:
      return kDpoServices;
    case Program::kRewardModel:
      return kRewardModelServices;
    default:
      return PpoServices(config);
  }
}

}  // namespace

const std::vector<FlagSpec>& PlanFlags() {
  static const std::vector<FlagSpec> flags = {
      {"preset", "NAME", "A method by its name (orchestrator --help): what it sets, --config and --set go over."},
      {"config", "FILE", "The run's configuration, a RunConfig in protobuf text format."},
      {"set", "PATH=VALUE", "Overrides one field, for example --set=actor.zero_stage=3. May be repeated.", true},
      {"program", "NAME", "The run that is planned: ppo (default), sft, dpo or reward_model."},
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

absl::StatusOr<PlanRequest> ReadPlanRequest(const CommandLine& flags) {
  PlanRequest request;
  QUARTET_ASSIGN_OR_RETURN(request.search, ReadSearch(flags));
  QUARTET_RETURN_IF_ERROR(ReadRate(flags, "tflops", 1e12, &request.flops));
  QUARTET_RETURN_IF_ERROR(ReadRate(flags, "gb_per_second", 1e9, &request.bytes_per_second));
  QUARTET_RETURN_IF_ERROR(ReadMebibytes(flags, "process_mib", &request.process_bytes));
  QUARTET_RETURN_IF_ERROR(ReadMebibytes(flags, "cuda_mib", &request.cuda_bytes));
  request.json = flags.Has("json");
  if (request.json && (request.flops.has_value() || request.bytes_per_second.has_value())) {
    return absl::InvalidArgumentError("--tflops and --gb_per_second have no effect with --json");
  }
  QUARTET_ASSIGN_OR_RETURN(
      request.config,
      LoadRunConfig({flags.Get("preset").value_or(""), flags.Get("config").value_or(""), flags.GetAll("set")}, ""));
  QUARTET_ASSIGN_OR_RETURN(request.program, ReadProgram(flags));
  if (request.program == Program::kPpo && request.config.sft().data_size() > 0) {
    return absl::InvalidArgumentError(
        "sft.data is not of the PPO run that is planned; --program=sft plans fine-tuning");
  }
  if (request.program == Program::kPpo && request.config.preference().data_size() > 0) {
    return absl::InvalidArgumentError(
        "preference.data is not of the PPO run that is planned; --program=dpo and --program=reward_model plan what "
        "reads pairs");
  }
  const std::vector<std::string> all = ServicesOf(request.program, request.config);
  if (request.program != Program::kPpo) {
    if (request.flops.has_value() || request.bytes_per_second.has_value()) {
      return absl::InvalidArgumentError("--tflops and --gb_per_second have an effect on PPO's steps only");
    }
    QUARTET_RETURN_IF_ERROR(CheckFor(request.config, request.program));
    FillDefaultsFor(request.program, &request.config);
  }
  request.services = flags.GetAll("service");
  if (request.services.empty()) request.services = all;
  for (const std::string& service : request.services) {
    QUARTET_ASSIGN_OR_RETURN(const Program program, ServiceProgram(service));
    if (request.program == Program::kPpo) {
      QUARTET_RETURN_IF_ERROR(CheckFor(request.config, program));
    } else if (std::find(all.begin(), all.end(), service) == all.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--service=", service,
                                                     " is not of --program=", flags.Get("program").value_or(""),
                                                     ", which has ", absl::StrJoin(all, ", ")));
    }
  }
  QUARTET_RETURN_IF_ERROR(CheckModelConfigs(request.config, request.services));
  return request;
}

}  // namespace quartet
