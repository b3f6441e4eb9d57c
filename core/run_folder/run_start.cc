#include "core/run_folder/run_start.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/hashed_text.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/config/run_config.h"
#include "core/config/services.h"
#include "core/data/json.h"
#include "core/run_folder/checkpoints/checkpoint_search.h"
#include "core/run_folder/continuation.h"
#include "core/run_folder/records/file_tail.h"
#include "core/run_folder/run_lock.h"

namespace quartet {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{64} << 20;
constexpr char kBringBack[] = "Bring the file back as it was";

bool Continues(const RunConfig& config) {
  return config.train().load_checkpoint() && RunFolder::HasRun(config.run_dir());
}

absl::Status WithWayOn(const RunConfig& config, const absl::Status& status) {
  if (!absl::IsAlreadyExists(status) || !RunFolder::HasRun(config.run_dir())) return status;
  // A run that saved nothing to continue from, and has its end, can only be kept.
  const std::string checkpoints = config.run_dir() + "/checkpoints";
  const auto folders = ListCheckpoints(checkpoints);
  const bool saved = folders.ok() && std::any_of(folders->begin(), folders->end(),
                                                 [](const auto& one) { return IsFinished(one.second); });
  if (saved && !NewestRecord(checkpoints).has_value()) return status;
  std::error_code error;
  const bool knows_itself = std::filesystem::exists(config.run_dir() + "/run.textproto", error);
  return absl::AlreadyExistsError(absl::StrCat(
      status.message(), "; to continue its run: ",
      knows_itself
          ? ""
          : "bring its run.textproto back, which is missing (train.allow_changed_run=true does without it), then ",
      "--set=train.load_checkpoint=true"));
}

absl::Status CheckNotInUse(const std::string& run_dir) {
  std::error_code error;
  if (!std::filesystem::exists(run_dir + "/" + kRunLockName, error)) return absl::OkStatus();
  return RunLock::Take(run_dir).status();
}

// What a run without a checkpoint does, and what becomes of its steps.
std::string BeginsAnew(const std::string& run_dir) {
  FileTail metrics(run_dir + "/metrics.jsonl");
  std::string lines;
  const absl::Status read = metrics.Read(&lines);
  const size_t steps = read.ok() ? Records(lines).size() : 0;
  if (steps == 0) return "the run has no checkpoint yet: it begins anew";
  return absl::StrCat("the run has made ", steps, steps == 1 ? " step and has" : " steps and has",
                      " no checkpoint (train.save_steps): it begins anew, and what it has recorded goes to ", run_dir,
                      "/superseded");
}

// `config` is what the run began with, `now` what it reads.
absl::StatusOr<std::vector<RunInput>> ReadInputsOf(const std::string& run_dir, const RunConfig& config,
                                                   const std::vector<RunInput>& now, std::vector<std::string>* notes) {
  const std::string path = run_dir + "/inputs.json";
  QUARTET_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxTextBytes));
  QUARTET_ASSIGN_OR_RETURN(std::vector<RunInput> inputs, ParseRunInputs(text, path));
  if (!BeginsWithHash(text)) {
    QUARTET_RETURN_IF_ERROR(CheckHasInputs(inputs, config, now, path));
    notes->push_back(absl::StrCat(path, " has no hash of its own: whether it was altered is not known"));
  }
  return inputs;
}

// What says how the run began cannot be read: an error, or a note where the run may go on as another. `way` is one to
// mend that.
absl::Status NotKnown(const RunConfig& config, const std::string& what, const absl::Status& why, const std::string& way,
                      std::vector<std::string>* notes) {
  const std::string text = absl::StrCat(what, " is not known: ", why.message());
  if (config.train().allow_changed_run()) {
    notes->push_back(text);
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(text, ". ", way, "; or, to go on with what is configured now, of which the file is then written ",
                   "anew, train.allow_changed_run=true"));
}

// What says where a new run begins is not read by one that goes on after the checkpoint of `resume`. INVALID_ARGUMENT
// where `now` says it otherwise than `before`, with which the run began.
absl::Status CheckBeginning(const RunConfig& before, const RunConfig& now, const CheckpointRecord& resume) {
  const std::string checkpoint = absl::StrCat(now.run_dir(), "/checkpoints/", CheckpointId(resume.step));
  for (const auto& [service, section, model, state] : kTrainers) {
    const std::string& given = TrainerOf(now, section).load_checkpoint();
    if (given.empty() || given == TrainerOf(before, section).load_checkpoint()) continue;
    std::error_code error;
    // What it goes on with.
    if (std::filesystem::equivalent(given, absl::StrCat(checkpoint, "/", state), error)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(section, ".load_checkpoint: ", given, " would have no effect: the run in ", now.run_dir(),
                     " goes on with the state of its newest checkpoint, ", checkpoint,
                     ". Leave it out; or, to begin a run with that state, give another run_dir"));
  }
  const KlConfig &was = before.algorithm().kl(), &is = now.algorithm().kl();
  if (is.kl_target() > 0 && is.init_kl_coef() != was.init_kl_coef()) {
    return absl::InvalidArgumentError(
        absl::StrCat("algorithm.kl.init_kl_coef: ", is.init_kl_coef(), " would have no effect: the coefficient adapts ",
                     "(algorithm.kl.kl_target is ", is.kl_target(), "), and the run in ", now.run_dir(),
                     " goes on with that of its newest checkpoint, ", resume.kl_coefficient, ". Set it as it was, ",
                     was.init_kl_coef(), "; or, for a coefficient that stays, algorithm.kl.kl_target=0"));
  }
  return absl::OkStatus();
}

// `notes` gets what is otherwise than when the run began, and may be. Of files whose rows were mended, `inputs` gets
// what they were when the run began: it is that which later changes, too, are held against. `resume`, of the checkpoint
// that it goes on after, is told whether it learns from any of them, and why its prompts may read otherwise.
absl::Status NoteChanges(const RunConfig& config, std::vector<RunInput>* inputs, std::vector<std::string>* notes,
                         CheckpointRecord* resume) {
  const absl::StatusOr<RunConfig> before = LoadRecordedRun(config.run_dir());
  if (!before.ok()) {
    // It is whole, and says what this release does not know.
    const bool is_of_others = absl::IsInvalidArgument(before.status());
    return NotKnown(config, "what has changed since the run began", before.status(),
                    is_of_others
                        ? "Where an earlier release has written it, name its fields and values as this one does "
                          "(docs/migrating.md, \"Earlier versions\"), else bring it back as it was"
                        : kBringBack,
                    notes);
  }
  QUARTET_RETURN_IF_ERROR(CheckBeginning(*before, config, *resume));
  std::vector<ChangedInput> changed;
  if (const absl::StatusOr<std::vector<RunInput>> read = ReadInputsOf(config.run_dir(), *before, *inputs, notes);
      read.ok()) {
    changed = ChangedInputs(*read, *inputs);
    for (const ChangedInput& change : changed) {
      if (!change.is_mended) continue;
      if (DecidesWhatIsLearned(change.option)) resume->rows_are_mended = true;
      const auto is_it = [&](const RunInput& one) { return one.option == change.option && one.path == change.path; };
      *std::ranges::find_if(*inputs, is_it) = *std::ranges::find_if(*read, is_it);
    }
  } else if (absl::IsNotFound(read.status())) {
    notes->push_back(
        absl::StrCat("whether its models and data are as when it began is not known: ", read.status().message()));
  } else {
    QUARTET_RETURN_IF_ERROR(
        NotKnown(config, "whether its models and data are as when it began", read.status(), kBringBack, notes));
  }
  QUARTET_ASSIGN_OR_RETURN(const std::vector<std::string> changes, ChangesOfRun(*before, config, changed));
  for (const std::string& change : changes) {
    if (MayChangeRows(change.substr(0, change.find(':')))) resume->rows_read_otherwise.push_back(change);
    notes->push_back(absl::StrCat("changed since the run began: ", change));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RunConfig> LoadRecordedRun(const std::string& run_dir) {
  const std::string path = run_dir + "/run.textproto";
  const absl::StatusOr<std::string> read = ReadTextFile(path, kMaxTextBytes);
  if (absl::IsNotFound(read.status())) {
    return absl::NotFoundError(absl::StrCat(path, " is missing, though ", run_dir, "/checkpoints has checkpoints"));
  }
  QUARTET_ASSIGN_OR_RETURN(const std::string text, read);
  if (text.empty()) return absl::DataLossError(absl::StrCat(path, ": is empty"));
  if (absl::StartsWith(text, kConfigBegin) && !absl::EndsWith(text, absl::StrCat("\n", kConfigEnd))) {
    return absl::DataLossError(
        absl::StrCat(path, ": is cut short: its last line, \"", absl::StripSuffix(kConfigEnd, "\n"), "\", is missing"));
  }
  return LoadRunConfig(path, {}, "", Program::kViewer);
}

absl::Status CheckNewRunDir(const RunConfig& config, const std::string& allowed_entry) {
  QUARTET_RETURN_IF_ERROR(CheckNotInUse(config.run_dir()));
  return RunFolder::CheckFree(config.run_dir(), allowed_entry);
}

absl::Status CheckRunDir(const RunConfig& config, const std::string& allowed_entry) {
  if (Continues(config)) {
    QUARTET_RETURN_IF_ERROR(CheckNotInUse(config.run_dir()));
    const absl::StatusOr<RunConfig> before = LoadRecordedRun(config.run_dir());
    return before.ok() ? CheckProgramOfRun(*before, config) : absl::OkStatus();
  }
  return WithWayOn(config, CheckNewRunDir(config, allowed_entry));
}

std::optional<RunConfig> ConfigBefore(const RunConfig& config) {
  if (!Continues(config)) return std::nullopt;
  absl::StatusOr<RunConfig> before = LoadRecordedRun(config.run_dir());
  return before.ok() ? std::optional(*std::move(before)) : std::nullopt;
}

absl::Status CheckChanges(const RunConfig& config, std::vector<RunInput> inputs) {
  if (!Continues(config)) return absl::OkStatus();
  std::optional<CheckpointRecord> newest = NewestRecord(config.run_dir() + "/checkpoints");
  if (!newest.has_value()) return absl::OkStatus();
  std::vector<std::string> notes;
  return NoteChanges(config, &inputs, &notes, &*newest);
}

absl::StatusOr<RunStart> OpenRun(const RunConfig& config, const std::string& allowed_entry,
                                 std::vector<RunInput> inputs, const std::function<absl::Status()>& proceed) {
  RunStart start;
  if (!Continues(config)) {
    absl::StatusOr<std::unique_ptr<RunFolder>> folder = RunFolder::Create(config, allowed_entry);
    QUARTET_RETURN_IF_ERROR(WithWayOn(config, folder.status()));
    start.folder = *std::move(folder);
    start.folder->UseInputsText(PrintRunInputs(inputs));
    return start;
  }
  start.had_begun = true;
  QUARTET_ASSIGN_OR_RETURN(start.folder, RunFolder::Open(config));
  QUARTET_ASSIGN_OR_RETURN(CheckpointSearch search, FindNewestCheckpoint(start.folder->checkpoints_path(), proceed));
  for (std::string& reason : search.passed_over) {
    start.notes.push_back(absl::StrCat("passed over a checkpoint: ", reason));
  }
  for (std::string& note : search.notes) start.notes.push_back(std::move(note));
  if (!search.found.has_value()) {
    start.notes.push_back(BeginsAnew(config.run_dir()));
  } else {
    QUARTET_RETURN_IF_ERROR(NoteChanges(config, &inputs, &start.notes, &*search.found));
  }
  start.folder->UseInputsText(PrintRunInputs(inputs));
  start.resume = std::move(search.found);
  return start;
}

}  // namespace quartet
