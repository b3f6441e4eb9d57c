// The programs that a configuration is for, and what each of them reads of it.
//
// A field means the same in every program that reads it. What differs is whether it is read, and for a few what it is
// where it is not set: both are rows of one table (programs.cc), from which come defaults, refusals and --help.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/run_config.pb.h"

namespace quartet {

// What a configuration is used for. Services and kViewer, which only looks at a run, are given the file of whatever
// program drives them, and read their part of it: the table has no rows for them.
enum class Program {
  kRollout,
  kPolicyTrainer,
  kCriticTrainer,
  kScorer,
  kPpo,
  kSft,
  kDpo,
  kRewardModel,
  kEvaluate,
  kViewer
};

// Those that train and drive services, by the names that users know; a program of that name runs it, but for PPO, which
// is the orchestrator's.
inline const std::vector<std::pair<std::string, Program>> kRunPrograms = {
    {"ppo", Program::kPpo}, {"sft", Program::kSft}, {"dpo", Program::kDpo}, {"reward_model", Program::kRewardModel}};
const std::string& RunProgramName(Program program);
// The name of the program that runs one of these, "orchestrator" of PPO, or of an evaluation, "evaluate".
std::string ExecutableName(Program program);
// That of a run whose configuration, as it was resolved, this is.
Program ProgramOfRun(const RunConfig& config);
// The services that one of these, or an evaluation, drives.
std::vector<std::string> ServicesOf(Program program, const RunConfig& config);
// The section of the model that it learns, "actor" or "critic"; of PPO and an evaluation the policy's. That model's
// tokenizer is the run's.
std::string LearningSection(Program program);

// The program of a service's name ("rollout", "policy_trainer", ...).
absl::StatusOr<Program> ServiceProgram(std::string_view service);

// Whether `program` reads, in some configuration, the field, or fields of the message, at `path`, of which it reads
// what stands above.
bool IsRead(Program program, std::string_view path);

// The default, as in text format, that the field at `path` has in `program`; "" where it has none of its own there.
std::string DefaultOf(Program program, std::string_view path);

// Clears what `program` does not read.
void ClearUnread(Program program, RunConfig* config);

// INVALID_ARGUMENT names what is set in `written` although `program` does not read it, and why it does not.
absl::Status CheckRead(Program program, const RunConfig& written);

// Sets what has another default in each program, of fields whose default no other field decides; in `config` the rules'
// defaults are filled in.
void FillDefaultsOf(Program program, RunConfig* config);

}  // namespace quartet
