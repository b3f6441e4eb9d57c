#include "core/run_folder/continuation.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/config/field_paths.h"
#include "core/config/programs.h"

namespace quartet {
namespace {

// Paths, or what they begin with. What comes next follows from these: which model is trained and held against which,
// and which prompts it sees.
constexpr std::string_view kFixed[] = {
    "seed",
    "actor.pretrain",
    "critic.pretrain",
    "reference.pretrain",
    "rollout.rollout_batch_size",
    "rollout.over_sampling_batch_size",
    "rollout.n_samples_per_prompt",
    "data.",
    "sft.data",
    "sft.input_key",
    "sft.output_key",
    "sft.multiturn",
    "sft.end_token",
    "preference.data",
    "preference.input_key",
    "preference.chosen_key",
    "preference.rejected_key",
    "preference.margin_key",
    "preference.end_token",
    "preference.loss",
};
// Which rows come next: where rows are learned from. Of PPO it only says how a batch of answers is cut.
constexpr std::string_view kBatch = "train.train_batch_size";
// Of data, what decides neither which prompts there are nor what they read; or, of rows that are left out, does, which
// the hash of a checkpoint's prompts then tells.
constexpr std::string_view kFree[] = {"data.source_key", "data.checked_rows", "data.skip_malformed"};
// Where only one of the two says it the hash of a checkpoint's prompts tells whether they have another.
constexpr std::string_view kDate = "data.template_date";
// The shape of what is trained, which no checkpoint has otherwise.
constexpr std::string_view kShape[] = {"actor.lora", "critic.lora"};
// Where things are.
constexpr std::string_view kPlaces[] = {"run_dir", "train.load_checkpoint", "train.allow_changed_run", "services."};

template <size_t n>
bool IsOne(const std::string& path, const std::string_view (&of)[n]) {
  return std::any_of(std::begin(of), std::end(of), [&](std::string_view one) {
    return one.back() == '.' ? absl::StartsWith(path, absl::string_view(one.data(), one.size()))
                             : path == one || absl::StartsWith(path, absl::StrCat(std::string(one), "."));
  });
}

}  // namespace

bool DecidesWhatIsLearned(const std::string& path) { return IsOne(path, kFixed) && !IsOne(path, kFree); }

bool MayChangeRows(const std::string& path) { return IsOne(path, kFree) || path == kDate; }

absl::Status CheckProgramOfRun(const RunConfig& before, const RunConfig& now) {
  const Program was = ProgramOfRun(before), is = ProgramOfRun(now);
  if (was == is) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("run_dir: ", now.run_dir(), " has a run of the program ",
                                                 RunProgramName(was), ", with which ", RunProgramName(is),
                                                 " cannot go on; give another run_dir"));
}

absl::StatusOr<std::vector<std::string>> ChangesOfRun(const RunConfig& before, const RunConfig& now,
                                                      const std::vector<ChangedInput>& inputs) {
  const std::map<std::string, std::string> old = FlatFields(before), present = FlatFields(now);
  std::set<std::string> paths;
  for (const auto* fields : {&old, &present}) {
    for (const auto& [path, value] : *fields) paths.insert(path);
  }
  const std::string nothing = "nothing";
  const auto value_in = [&](const std::map<std::string, std::string>& fields, const std::string& path) {
    const auto found = fields.find(path);
    return found == fields.end() ? nothing : found->second;
  };
  std::vector<std::string> changes, refused;
  const bool learns_from_rows = now.has_sft() || now.has_preference();
  const auto add = [&](const std::string& path, const std::string& change, bool may_change = false) {
    changes.push_back(absl::StrCat(path, ": ", change));
    const bool decides = DecidesWhatIsLearned(path) || (path == kBatch && learns_from_rows);
    if (decides && !may_change) refused.push_back(changes.back());
  };
  QUARTET_RETURN_IF_ERROR(CheckProgramOfRun(before, now));
  for (const std::string& path : paths) {
    if (IsOne(path, kShape) && value_in(old, path) != value_in(present, path)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", value_in(old, path), " -> ", value_in(present, path),
                                                     ": the run in ", now.run_dir(),
                                                     " has adapters as they were set when it began, and goes on with "
                                                     "those alone; set it as it was, or give another run_dir"));
    }
    const std::string was = value_in(old, path), is = value_in(present, path);
    if (was == is || IsOne(path, kPlaces)) continue;
    add(path, absl::StrCat(was, " -> ", is), path == kDate && (was == nothing || is == nothing));
  }
  const size_t refused_fields = refused.size();
  for (const ChangedInput& input : inputs) add(input.option, input.change, input.is_mended);
  if (refused.empty() || now.train().allow_changed_run()) return changes;
  std::vector<std::string> ways;
  if (refused_fields > 0) ways.push_back("set the options as they were (its run.textproto has them)");
  if (refused.size() > refused_fields) ways.push_back("bring the files back as they were, whose content is another");
  // A state of adapters is of its model alone.
  const bool of_other_base =
      std::ranges::any_of(refused, [](const std::string& one) { return absl::StrContains(one, "other base weights"); });
  return absl::FailedPreconditionError(
      absl::StrCat("the run in ", now.run_dir(),
                   " cannot go on with another model, other data or another batch than it began with:\n  ",
                   absl::StrJoin(refused, "\n  "), "\nThe ways out: ", absl::StrJoin(ways, ", and "),
                   of_other_base ? "" : "; or, to go on all the same, train.allow_changed_run=true",
                   "; or begin another run, in another run_dir"));
}

}  // namespace quartet
