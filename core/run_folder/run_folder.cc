#include "core/run_folder/run_folder.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "core/base/fail_point.h"
#include "core/base/files/files.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/config/run_config.h"
#include "core/run_folder/checkpoints/checkpoint_search.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;

absl::Status RemoveCheckpoint(const fs::path& folder) {
  std::error_code error;
  // From here on it is no whole checkpoint, however far the rest comes.
  fs::remove(folder / kCheckpointRecordName, error);
  if (!error) fs::remove_all(folder, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot remove the checkpoint ", folder.string(), ": ", error.message()));
}

constexpr absl::string_view kEventsPrefix = "events.out.tfevents.";

// The names of what is in a folder, in order.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(path, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot read the folder ", path));
  std::sort(names.begin(), names.end());
  return names;
}

// Whether a name's end is what AtomicWriteFile gives to a file that it has not put in its place yet.
bool IsOfAtomicWrite(absl::string_view end) {
  return end.size() == 9 && end[0] == '.' && std::all_of(end.begin() + 1, end.end(), absl::ascii_isxdigit);
}

// What an orchestrator leaves of a run that has ended before its first step was finished.
bool IsOfAStart(const std::string& name) {
  for (const char* entry : {"run.textproto", "inputs.json", "metrics.jsonl", "samples.jsonl", "heldout.jsonl",
                            "evaluations.jsonl", "events.jsonl", "state.json", "phase.json", "report.html", "plan.json",
                            "launch", "control", "checkpoints", "batches", "logs", "superseded"}) {
    // Or what it was about to put in its place.
    absl::string_view rest = name;
    if (absl::ConsumePrefix(&rest, entry) && (rest.empty() || rest == ".new" || IsOfAtomicWrite(rest))) return true;
  }
  return absl::StartsWith(name, kEventsPrefix);
}

// Of files named "step_N.safetensors": N, and the names.
std::map<int64_t, std::string> ListBatches(const std::string& folder) {
  std::map<int64_t, std::string> batches;
  const absl::StatusOr<std::vector<std::string>> names = ListFolder(folder);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    absl::string_view number = name;
    int64_t step = 0;
    const bool is_one = absl::ConsumePrefix(&number, "step_") && absl::ConsumeSuffix(&number, ".safetensors");
    if (is_one && absl::SimpleAtoi(number, &step)) batches[step] = name;
  }
  return batches;
}

// The text of a file; "" where there is none.
absl::StatusOr<std::string> ReadIfThere(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  return absl::IsNotFound(text.status()) ? "" : std::move(text);
}

}  // namespace

bool RunFolder::HasRun(const std::string& run_dir) {
  std::error_code error;
  if (fs::exists(run_dir + "/run.textproto", error)) return true;
  const auto checkpoints = ListCheckpoints(run_dir + "/checkpoints");
  return checkpoints.ok() && !checkpoints->empty();
}

absl::Status RunFolder::CheckFree(const std::string& run_dir, const std::string& allowed) {
  if (run_dir.empty()) return absl::InvalidArgumentError("run_dir is empty; it names the run's folder");
  std::error_code error;
  if (!fs::exists(run_dir, error)) return absl::OkStatus();
  if (!fs::is_directory(run_dir, error)) {
    return absl::AlreadyExistsError(absl::StrCat("run_dir ", run_dir, " is a file, not a folder"));
  }
  QUARTET_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(run_dir));
  const bool locked = std::find(names.begin(), names.end(), kRunLockName) != names.end();
  QUARTET_ASSIGN_OR_RETURN(const auto checkpoints, ListCheckpoints(run_dir + "/checkpoints"));
  const auto refuse = [&](const std::string& name) {
    return absl::AlreadyExistsError(
        absl::StrCat("run_dir ", run_dir, " is not empty (it has ", name, "); give a new folder",
                     checkpoints.empty() ? ", or remove this one if its results are not needed any more" : ""));
  };
  for (const std::string& name : names) {
    if (name == allowed || name == kRunLockName || (locked && IsOfAStart(name))) continue;
    return refuse(name);
  }
  std::error_code none;
  if (const uintmax_t bytes = fs::file_size(run_dir + "/metrics.jsonl", none); !none && bytes > 0) {
    return refuse("metrics.jsonl");
  }
  return checkpoints.empty() ? absl::OkStatus() : refuse("checkpoints/" + CheckpointId(checkpoints.begin()->first));
}

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::Create(const RunConfig& config, const std::string& allowed) {
  std::unique_ptr<RunFolder> folder(new RunFolder(config.run_dir(), PrintRunConfig(config)));
  // In a folder that is something else not even a lock is left behind.
  std::error_code error;
  if (!fs::exists(absl::StrCat(folder->path_, "/", kRunLockName), error)) {
    QUARTET_RETURN_IF_ERROR(CheckFree(folder->path_, allowed));
  }
  QUARTET_RETURN_IF_ERROR(MakeDirs(folder->path_));
  QUARTET_ASSIGN_OR_RETURN(folder->lock_, RunLock::Take(folder->path_));
  QUARTET_RETURN_IF_ERROR(CheckFree(folder->path_, allowed));
  QUARTET_RETURN_IF_ERROR(MakeDirs(folder->logs_path()));
  return folder;
}

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::Open(const RunConfig& config) {
  std::unique_ptr<RunFolder> folder(new RunFolder(config.run_dir(), PrintRunConfig(config)));
  QUARTET_ASSIGN_OR_RETURN(folder->lock_, RunLock::Take(folder->path_));
  QUARTET_RETURN_IF_ERROR(MakeDirs(folder->logs_path()));
  return folder;
}

absl::Status RunFolder::BeginAfter(int64_t steps, const std::function<void(const Metrics&)>& on_kept) {
  // First: with it the folder is a run's, which can be opened.
  QUARTET_RETURN_IF_ERROR(ReplaceText("run.textproto", absl::StrCat(kConfigBegin, config_, kConfigEnd)));
  if (!inputs_.empty()) QUARTET_RETURN_IF_ERROR(ReplaceText("inputs.json", inputs_));
  QUARTET_RETURN_IF_ERROR(MakeDirs(checkpoints_path()));
  QUARTET_ASSIGN_OR_RETURN(const auto checkpoints, ListCheckpoints(checkpoints_path()));
  for (const auto& [step, path] : checkpoints) {
    if (step > steps) QUARTET_RETURN_IF_ERROR(Supersede("checkpoints/" + CheckpointId(step)));
  }
  for (const auto& [step, name] : ListBatches(path_ + "/batches")) {
    if (step > steps) QUARTET_RETURN_IF_ERROR(Supersede("batches/" + name));
  }
  if (steps > 0) {
    QUARTET_RETURN_IF_ERROR(PointLatestAt(CheckpointId(steps)));
  } else {
    unlink((checkpoints_path() + "/latest").c_str());  // points at nothing now
  }
  QUARTET_ASSIGN_OR_RETURN(const std::set<int64_t> recorded, KeepSteps("metrics.jsonl", steps, on_kept));
  if (!recorded.empty()) last_recorded_step_ = *recorded.rbegin();
  for (int64_t step = 0; step < steps; ++step) {
    if (!recorded.contains(step)) missing_steps_.push_back(step);
  }
  QUARTET_RETURN_IF_ERROR(KeepSteps("samples.jsonl", steps).status());
  // A step whose record is missing is evaluated again; a run that begins anew is so before its first step.
  if (std::error_code error; fs::exists(path_ + "/evaluations.jsonl", error)) {
    QUARTET_RETURN_IF_ERROR(KeepSteps("evaluations.jsonl", steps > 0 ? last_recorded_step_ + 1 : -1).status());
  }
  QUARTET_RETURN_IF_ERROR(KeepWarnings(steps));
  QUARTET_RETURN_IF_ERROR(KeepEvents(steps));
  QUARTET_ASSIGN_OR_RETURN(metrics_, AppendFile::Open(metrics_path()));
  QUARTET_ASSIGN_OR_RETURN(samples_, AppendFile::Open(samples_path()));
  QUARTET_ASSIGN_OR_RETURN(tensorboard_, TensorBoardWriter::Create(path_, absl::Now()));
  QUARTET_RETURN_IF_ERROR(SyncFolder(checkpoints_path()));
  return SyncFolder(path_);
}

absl::Status RunFolder::KeepBatch(int64_t steps_done, int64_t keep,
                                  const std::function<absl::Status(const std::string& path)>& write) {
  const std::string folder = path_ + "/batches";
  QUARTET_RETURN_IF_ERROR(MakeDirs(folder));
  QUARTET_RETURN_IF_ERROR(write(absl::StrCat(folder, "/", CheckpointId(steps_done), ".safetensors")));
  std::map<int64_t, std::string> batches = ListBatches(folder);
  for (; batches.size() > static_cast<size_t>(keep); batches.erase(batches.begin())) {
    const std::string oldest = absl::StrCat(folder, "/", batches.begin()->second);
    if (unlink(oldest.c_str()) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove ", oldest));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> RunFolder::SupersededFolder() {
  if (!superseded_.empty()) return superseded_;
  const std::string parent = path_ + "/superseded";
  QUARTET_RETURN_IF_ERROR(MakeDirs(parent));
  std::string folder;
  int n = 0;
  do {
    folder = absl::StrCat(parent, "/", ++n);
    if (mkdir(folder.c_str(), 0755) == 0) {
      QUARTET_RETURN_IF_ERROR(SyncFolder(parent));
      QUARTET_RETURN_IF_ERROR(SyncFolder(path_));
      superseded_ = folder;
    } else if (errno != EEXIST) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot create the folder ", folder));
    }
  } while (superseded_.empty());
  return superseded_;
}

namespace {

absl::Status MoveAside(const fs::path& from, fs::path to) {
  QUARTET_RETURN_IF_ERROR(MakeDirs(to.parent_path().string()));
  bool moved = rename(from.c_str(), to.c_str()) == 0;
  if (!moved && errno == EXDEV) {
    // Its folder is on another file system (a link to a larger disk, say): there it goes to a folder of the same name.
    to = from.parent_path() / "superseded" / to.parent_path().parent_path().filename() / to.filename();
    QUARTET_RETURN_IF_ERROR(MakeDirs(to.parent_path().string()));
    moved = rename(from.c_str(), to.c_str()) == 0;
  }
  if (!moved) return absl::ErrnoToStatus(errno, absl::StrCat("cannot move ", from.string(), " to ", to.string()));
  QUARTET_RETURN_IF_ERROR(SyncFolder(to.parent_path().string()));
  return SyncFolder(from.parent_path().string());
}

}  // namespace

absl::Status RunFolder::Supersede(const std::string& name) {
  QUARTET_ASSIGN_OR_RETURN(const std::string folder, SupersededFolder());
  const fs::path from = path_ + "/" + name, to = folder + "/" + name;
  QUARTET_RETURN_IF_ERROR(MoveAside(from, to));
  return SyncFolder(folder);
}

absl::Status RunFolder::Rewrite(const std::string& name, const std::string& aside, const std::string& content) {
  if (!aside.empty()) {
    QUARTET_ASSIGN_OR_RETURN(const std::string folder, SupersededFolder());
    QUARTET_RETURN_IF_ERROR(AtomicWriteFile(absl::StrCat(folder, "/", name), aside));
  }
  return AtomicWriteFile(absl::StrCat(path_, "/", name), content);
}

absl::Status RunFolder::ReplaceText(const std::string& name, const std::string& content) {
  QUARTET_ASSIGN_OR_RETURN(const std::string old, ReadIfThere(absl::StrCat(path_, "/", name)));
  if (old == content && !old.empty()) return absl::OkStatus();
  return Rewrite(name, old, content);
}

namespace {

struct LineParts {
  std::string kept, aside;
};

// The lines that `keeps`, and the others. What is no JSON is a discarded value: the last line of a run that was killed
// may be half a record.
LineParts SplitLines(const std::string& text, const std::function<bool(const nlohmann::json&)>& keeps) {
  LineParts parts;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    absl::StrAppend(keeps(record) ? &parts.kept : &parts.aside, line, "\n");
  }
  return parts;
}

std::optional<int64_t> StepOf(const nlohmann::json& record) {
  const bool has_one = record.is_object() && record.contains("step") && record["step"].is_number_integer();
  return has_one ? std::optional(record["step"].get<int64_t>()) : std::nullopt;
}

// What WriteMetrics has written.
Metrics MetricsOf(const nlohmann::json& record) {
  Metrics metrics;
  for (const auto& [name, value] : record.items()) {
    if (name == "step" || name == "time/unix") continue;
    if (value.is_null()) metrics.Set(name, std::numeric_limits<double>::quiet_NaN());
    if (value.is_number()) metrics.Set(name, value.get<double>());
  }
  return metrics;
}

}  // namespace

absl::StatusOr<std::set<int64_t>> RunFolder::KeepSteps(const std::string& name, int64_t steps,
                                                       const std::function<void(const Metrics&)>& on_kept) {
  QUARTET_ASSIGN_OR_RETURN(const std::string text, ReadIfThere(absl::StrCat(path_, "/", name)));
  std::set<int64_t> kept;
  const LineParts parts = SplitLines(text, [&](const nlohmann::json& record) {
    const std::optional<int64_t> step = StepOf(record);
    if (!step.has_value() || *step >= steps) return false;
    kept.insert(*step);
    if (on_kept) on_kept(MetricsOf(record));
    return true;
  });
  if (parts.kept != text || text.empty()) QUARTET_RETURN_IF_ERROR(Rewrite(name, parts.aside, parts.kept));
  return kept;
}

absl::Status RunFolder::KeepWarnings(int64_t steps) {
  const std::string name = "events.jsonl";
  QUARTET_ASSIGN_OR_RETURN(const std::string text, ReadIfThere(absl::StrCat(path_, "/", name)));
  const LineParts parts = SplitLines(text, [&](const nlohmann::json& event) {
    if (!event.is_object()) return false;
    const std::string kind = event.value("kind", "");
    return (kind != "warning" && kind != "error") || StepOf(event).value_or(-1) < steps;
  });
  return parts.kept == text ? absl::OkStatus() : Rewrite(name, parts.aside, parts.kept);
}

absl::Status RunFolder::KeepEvents(int64_t steps) {
  QUARTET_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(path_));
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, kEventsPrefix)) continue;
    QUARTET_ASSIGN_OR_RETURN(const std::string file, ReadFile(absl::StrCat(path_, "/", name)));
    const TensorBoardParts parts = SplitTensorBoardFile(file, steps);
    if (parts.later.empty()) continue;
    if (!parts.before.empty()) {
      QUARTET_RETURN_IF_ERROR(Rewrite(name, parts.later, parts.before));
    } else {
      QUARTET_RETURN_IF_ERROR(Supersede(name));
    }
  }
  return absl::OkStatus();
}

absl::Status RunFolder::WriteMetrics(int64_t step, const Metrics& metrics) {
  QUARTET_RETURN_IF_ERROR(metrics_->Append(LineOf(step, metrics)));
  return tensorboard_->Write(step, absl::Now(), metrics);
}

absl::Status RunFolder::WriteSamples(const std::vector<SampleRecord>& samples) {
  std::string lines;
  for (const SampleRecord& sample : samples) lines += LineOf(sample);
  return samples_->Append(lines);
}

absl::Status RunFolder::SyncRecords() {
  QUARTET_RETURN_IF_ERROR(metrics_->Sync());
  return samples_->Sync();
}

absl::Status RunFolder::WriteEvaluation(const EvaluationRecord& record) {
  return AppendTo("evaluations.jsonl", LineOf(record));
}

absl::Status RunFolder::AppendTo(const std::string& name, const std::string& line) {
  const std::string path = absl::StrCat(path_, "/", name);
  std::error_code error;
  QUARTET_ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> file,
                           fs::exists(path, error) ? AppendFile::Open(path) : AppendFile::Create(path));
  QUARTET_RETURN_IF_ERROR(file->Append(line));
  return file->Sync();
}

absl::Status RunFolder::WriteState(const RunState& state) {
  return AtomicWriteFile(path_ + "/state.json", LineOf(state));
}

absl::Status RunFolder::WriteEvent(const std::string& kind, int64_t step, const std::string& from,
                                   const std::string& text) {
  return AppendTo("events.jsonl", EventLine(kind, step, from, text));
}

absl::Status RunFolder::WriteHeldout(const std::vector<HeldoutRecord>& records) {
  std::string lines;
  for (const HeldoutRecord& record : records) lines += LineOf(record);
  return ReplaceText("heldout.jsonl", lines);
}

absl::Status RunFolder::CommitCheckpoint(const CheckpointRecord& record, int64_t keep) {
  QUARTET_RETURN_IF_ERROR(FailPoint("orchestrator.checkpoint.saved"));
  // The records of the steps before it last as long as the checkpoint behind them.
  QUARTET_RETURN_IF_ERROR(SyncRecords());
  const std::string id = CheckpointId(record.step);
  CheckpointRecord whole = record;
  const auto commit = [&]() -> absl::Status {
    QUARTET_ASSIGN_OR_RETURN(whole.models, HashModels(checkpoint_path(id)));
    return WriteCheckpointRecord(checkpoint_path(id), whole);
  };
  if (const absl::Status written = commit(); !written.ok()) return GiveUpCheckpoint(id, {written});
  QUARTET_RETURN_IF_ERROR(FailPoint("orchestrator.checkpoint.committed"));
  QUARTET_RETURN_IF_ERROR(PointLatestAt(id));
  return RemoveOldCheckpoints(keep);
}

absl::Status RunFolder::PointLatestAt(const std::string& checkpoint_id) {
  const std::string link = checkpoints_path() + "/latest";
  const std::string temporary = checkpoints_path() + "/.latest.new";
  std::error_code error;
  const fs::file_type type = fs::symlink_status(link, error).type();
  // A copy that followed links has a folder here.
  if (type != fs::file_type::symlink && type != fs::file_type::not_found) {
    QUARTET_RETURN_IF_ERROR(Supersede("checkpoints/latest"));
  }
  unlink(temporary.c_str());
  if (symlink(checkpoint_id.c_str(), temporary.c_str()) != 0 || rename(temporary.c_str(), link.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot link ", link, " to ", checkpoint_id));
  }
  return SyncFolder(checkpoints_path());
}

absl::Status RunFolder::CheckHasSaved(const std::string& trainer, const std::string& saved) const {
  std::error_code error;
  if (fs::exists(checkpoint_path(saved), error)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the ", trainer, " has saved checkpoints/", saved, " in its own run_dir; it is not in the orchestrator's, ",
      path_, ". Give all programs the same run_dir, on a file system that all of them see"));
}

absl::Status RunFolder::GiveUpCheckpoint(const std::string& id, const std::vector<absl::Status>& saves) {
  absl::Status why;
  bool all_ended = true;  // who has not answered may go on with its part, and what was there is no part of this one
  for (const absl::Status& save : saves) {
    why.Update(save);
    all_ended = all_ended && !absl::IsUnavailable(save) && !absl::IsDeadlineExceeded(save) &&
                !absl::IsCancelled(save) && !absl::IsAlreadyExists(save);
  }
  std::error_code ignored;  // `why` is what is reported
  if (all_ended) fs::remove_all(checkpoints_path() + "/" + id, ignored);
  const auto says = [&why](int error) { return absl::StrContains(why.message(), strerror(error)); };
  if (!says(ENOSPC) && !says(EDQUOT)) return why;
  const std::optional<CheckpointRecord> newest = NewestRecord(checkpoints_path());
  return absl::Status(
      why.code(),
      absl::StrCat(why.message(),
                   "; free some space there (train.max_ckpt_num keeps fewer checkpoints; what continued runs have put "
                   "aside is in ",
                   path_, "/superseded). ",
                   newest.has_value() ? absl::StrCat("The newest whole checkpoint is ", checkpoints_path(), "/",
                                                     CheckpointId(newest->step))
                                      : "There is no whole checkpoint to continue from yet"));
}

absl::Status RunFolder::RemoveOldCheckpoints(int64_t keep) {
  if (keep == 0) return absl::OkStatus();
  QUARTET_ASSIGN_OR_RETURN(const auto checkpoints, ListCheckpoints(checkpoints_path()));
  for (const auto& [step, folder] : checkpoints) {
    if (keep == 0) QUARTET_RETURN_IF_ERROR(RemoveCheckpoint(folder));
    if (keep > 0 && IsFinished(folder)) --keep;
  }
  return absl::OkStatus();
}

}  // namespace quartet
