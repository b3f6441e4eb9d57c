// Reads, overrides, completes and checks a run's configuration. LibTorch-free and gRPC-free.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/config/services.h"
#include "proto/run_config.pb.h"

namespace quartet {

// Parses the text format file at `path` ("" = an empty configuration), applies `overrides` ("path.to.field=value";
// ApplyOverrides), fills in every default that proto/run_config.proto names and checks every value and
// combination. Relative paths inside resolve against `base_folder` ("" = the one the user is in) and come back
// absolute. `defaults` come before those of the comments. INVALID_ARGUMENT names file and line, or field, value and
// what is allowed.
absl::StatusOr<RunConfig> LoadRunConfig(const std::string& path, const std::vector<std::string>& overrides,
                                        const std::string& base_folder, const RunConfig& defaults = RunConfig());

// Parses the text format file at `path` over what `config` has already; as LoadRunConfig does, before defaults.
absl::Status ReadConfigFile(const std::string& path, RunConfig* config);

// Sets fields, each from "path.to.field=value". A repeated message is reached by index ("reward.source.0.rule=number"),
// where the index may be one past the end. Of a list of values the first override replaces what `config` has, further
// ones add theirs; commas stand between values ("data.prompt_data=a,b"), or it is written as in a file (["a,b", "c"]).
absl::Status ApplyOverrides(const std::vector<std::string>& overrides, RunConfig* config);

// Fills in defaults and checks; for configurations made in memory. Idempotent. What has no effect in it is cleared, and
// refused where it is set in `written`, the part of `config` that its user wrote (core/config/needs.h).
absl::Status ResolveRunConfig(RunConfig* config, const std::string& base_folder, const RunConfig& written);
// All of it is.
absl::Status ResolveRunConfig(RunConfig* config, const std::string& base_folder);

// What a configuration is used for, and so which fields must be set.
enum class Program { kRollout, kPolicyTrainer, kCriticTrainer, kScorer, kPpo, kSft, kDpo, kRewardModel, kEvaluate };

// Those that drive services, by the names that users know; a program of that name runs it, but for PPO, which is the
// orchestrator's.
inline const std::vector<std::pair<std::string, Program>> kRunPrograms = {
    {"ppo", Program::kPpo}, {"sft", Program::kSft}, {"dpo", Program::kDpo}, {"reward_model", Program::kRewardModel}};
const std::string& RunProgramName(Program program);
// The services that it drives.
std::vector<std::string> ServicesOf(Program program, const RunConfig& config);

// Of a resolved configuration: fills in what has another default in each program, and puts back to its default what
// `program`, which drives services, does not read.
void ResolveFor(Program program, RunConfig* config);

// Of such a one: clears what `program` does not read.
void ClearUnread(Program program, RunConfig* config);

// A field's path ("reward.source.0.rule") and what has set it: "preset grpo", a file's path or "--set". Fields that
// have their default are not in it.
using ValueOrigins = std::map<std::string, std::string>;

// INVALID_ARGUMENT names what is set although `program` does not read it, and why it does not. Of kEvaluate, which is
// given the file of a whole run, only what was set for it counts ("--set").
absl::Status CheckRead(const ValueOrigins& origins, Program program);

// Checks that a resolved configuration has what `program` needs; INVALID_ARGUMENT names the field.
absl::Status CheckFor(const RunConfig& config, Program program);

// The program of a service's name ("rollout", "policy_trainer", ...).
absl::StatusOr<Program> ServiceProgram(std::string_view service);

// Where `service` (a known name) listens and how many ranks it has.
const ServicePlacement& PlacementOf(const RunConfig& config, std::string_view service);
ServicePlacement* MutablePlacementOf(RunConfig* config, std::string_view service);

// Text format with every field, readable by LoadRunConfig.
std::string PrintRunConfig(const RunConfig& config);

// proto/run_config.proto as it was built: every option with its default and its comment.
std::string_view DescribeRunConfig();

}  // namespace quartet
