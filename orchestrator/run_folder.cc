#include "orchestrator/run_folder.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "core/base/files.h"
#include "core/base/status_macros.h"
#include "core/config/run_config.h"

namespace quartet {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// One line. Bytes that are not UTF-8 (a model can generate those) become U+FFFD.
std::string Line(const Json& object) { return object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

Json Number(double value) {
  if (!std::isfinite(value)) return nullptr;
  // Counts and versions read better without ".0".
  if (std::abs(value) < 9e15 && value == std::floor(value)) return static_cast<int64_t>(value);
  return value;
}

// Leaves the lines of `path`, one JSON object each, whose "step" is below `steps`; creates the file where it is
// missing.
absl::Status KeepSteps(const std::string& path, int64_t steps) {
  std::error_code error;
  std::string kept;
  if (fs::exists(path, error)) {
    QUARTET_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const nlohmann::json record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      // The last line of a run that was killed may be half a record.
      if (!record.is_object() || !record.contains("step") || !record["step"].is_number_integer()) continue;
      if (record["step"].get<int64_t>() < steps) absl::StrAppend(&kept, line, "\n");
    }
  }
  return AtomicWriteFile(path, kept);
}

// The number of a folder step_N; nothing for other names, such as those of unfinished folders.
std::optional<int64_t> StepOf(const fs::path& path) {
  const std::string name = path.filename().string();
  int64_t step = 0;
  if (!absl::StartsWith(name, "step_") || !absl::SimpleAtoi(name.substr(5), &step)) return std::nullopt;
  return step;
}

absl::Status RemoveCheckpoint(const fs::path& folder) {
  std::error_code error;
  // From here on it is no whole checkpoint, however far the rest comes.
  fs::remove(folder / "checkpoint.json", error);
  if (!error) fs::remove_all(folder, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot remove the checkpoint ", folder.string(), ": ", error.message()));
}

absl::StatusOr<std::map<int64_t, fs::path>> Checkpoints(const std::string& folder) {
  std::map<int64_t, fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (const std::optional<int64_t> step = StepOf(entry.path()); step.has_value()) found[*step] = entry.path();
  }
  if (error) return absl::UnavailableError(absl::StrCat("cannot read ", folder, ": ", error.message()));
  return found;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::Resume(const RunConfig& config, int64_t steps) {
  std::unique_ptr<RunFolder> folder(new RunFolder(config.run_dir()));
  QUARTET_RETURN_IF_ERROR(MakeDirs(folder->checkpoints_path()));
  QUARTET_RETURN_IF_ERROR(MakeDirs(folder->logs_path()));
  QUARTET_ASSIGN_OR_RETURN(const auto checkpoints, Checkpoints(folder->checkpoints_path()));
  for (const auto& [step, path] : checkpoints) {
    if (step > steps) QUARTET_RETURN_IF_ERROR(RemoveCheckpoint(path));
  }
  QUARTET_RETURN_IF_ERROR(KeepSteps(folder->metrics_path(), steps));
  QUARTET_RETURN_IF_ERROR(KeepSteps(folder->samples_path(), steps));
  unlink(folder->heldout_path().c_str());  // written again
  QUARTET_RETURN_IF_ERROR(AtomicWriteFile(folder->config_path(), PrintRunConfig(config)));
  QUARTET_ASSIGN_OR_RETURN(folder->metrics_, AppendFile::Open(folder->metrics_path()));
  QUARTET_ASSIGN_OR_RETURN(folder->samples_, AppendFile::Open(folder->samples_path()));
  QUARTET_ASSIGN_OR_RETURN(folder->tensorboard_, TensorBoardWriter::Create(folder->path_, absl::Now()));
  return folder;
}

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::Create(const RunConfig& config, const std::string& allowed) {
  if (config.run_dir().empty()) return absl::InvalidArgumentError("run_dir is empty; it names the run's folder");
  std::unique_ptr<RunFolder> folder(new RunFolder(config.run_dir()));
  std::error_code error;
  if (fs::exists(folder->path_, error)) {
    if (!fs::is_directory(folder->path_, error)) {
      return absl::AlreadyExistsError(absl::StrCat("run_dir ", folder->path_, " is a file, not a folder"));
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(folder->path_, error)) {
      if (entry.path().filename() == allowed) continue;
      return absl::AlreadyExistsError(absl::StrCat("run_dir ", folder->path_, " is not empty (it has ",
                                                   entry.path().filename().string(),
                                                   "); give a new folder, or remove this one if its results are not "
                                                   "needed any more"));
    }
    if (error)
      return absl::UnavailableError(absl::StrCat("cannot read run_dir ", folder->path_, ": ", error.message()));
  }
  QUARTET_RETURN_IF_ERROR(MakeDirs(folder->path_));
  QUARTET_RETURN_IF_ERROR(MakeDirs(folder->checkpoints_path()));
  QUARTET_RETURN_IF_ERROR(MakeDirs(folder->logs_path()));
  QUARTET_RETURN_IF_ERROR(AtomicWriteFile(folder->config_path(), PrintRunConfig(config)));
  QUARTET_ASSIGN_OR_RETURN(folder->metrics_, AppendFile::Create(folder->metrics_path()));
  QUARTET_ASSIGN_OR_RETURN(folder->samples_, AppendFile::Create(folder->samples_path()));
  QUARTET_ASSIGN_OR_RETURN(folder->tensorboard_, TensorBoardWriter::Create(folder->path_, absl::Now()));
  return folder;
}

absl::Status RunFolder::WriteMetrics(int64_t step, const Metrics& metrics) {
  Json object;
  object["step"] = step;
  for (const auto& [name, value] : metrics.values()) object[name] = Number(value);
  QUARTET_RETURN_IF_ERROR(metrics_->Append(Line(object)));
  return tensorboard_->Write(step, absl::Now(), metrics);
}

absl::Status RunFolder::WriteSamples(const std::vector<SampleRecord>& samples) {
  std::string lines;
  for (const SampleRecord& sample : samples) {
    Json object;
    object["step"] = sample.step;
    object["prompt"] = sample.prompt;
    object["response"] = sample.response;
    object["label"] = sample.label;
    object["reward"] = Number(sample.reward);
    Json parts = Json::object();
    for (const auto& [name, value] : sample.parts) parts[name] = Number(value);
    object["parts"] = parts;
    object["kl"] = sample.kl.has_value() ? Number(*sample.kl) : Json(nullptr);
    object["finish_reason"] = sample.finish_reason;
    lines += Line(object);
  }
  return samples_->Append(lines);
}

absl::Status RunFolder::WriteHeldout(const std::vector<HeldoutRecord>& records) {
  QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file, AppendFile::Create(heldout_path()));
  std::string lines;
  for (const HeldoutRecord& record : records) {
    Json object;
    object["prompt"] = record.prompt;
    object["label"] = record.label;
    lines += Line(object);
  }
  return file->Append(lines);
}

absl::Status RunFolder::PointLatestAt(const std::string& checkpoint_id) {
  const std::string link = checkpoints_path() + "/latest";
  const std::string temporary = checkpoints_path() + "/.latest.new";
  unlink(temporary.c_str());
  if (symlink(checkpoint_id.c_str(), temporary.c_str()) != 0 || rename(temporary.c_str(), link.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot link ", link, " to ", checkpoint_id, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status RunFolder::RemoveOldCheckpoints(int64_t keep) {
  if (keep == 0) return absl::OkStatus();
  QUARTET_ASSIGN_OR_RETURN(const auto checkpoints, Checkpoints(checkpoints_path()));
  int64_t surplus = static_cast<int64_t>(checkpoints.size()) - keep;
  for (auto oldest = checkpoints.begin(); surplus > 0; ++oldest, --surplus) {
    QUARTET_RETURN_IF_ERROR(RemoveCheckpoint(oldest->second));
  }
  return absl::OkStatus();
}

}  // namespace quartet
