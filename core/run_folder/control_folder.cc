#include "core/run_folder/control_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/files/fd.h"
#include "core/base/files/files.h"
#include "core/base/logging.h"
#include "core/base/random.h"
#include "core/base/status_macros.h"
#include "core/errors/shown.h"
#include "core/run_folder/private_folder.h"
#include "core/run_folder/records/file_tail.h"
#include "core/run_folder/records/record_fields.h"
#include "core/run_folder/run_lock.h"

namespace quartet {
namespace {

constexpr char kRequest[] = "/request.json";
constexpr char kAnswers[] = "/answers.jsonl";
constexpr absl::Duration kAnswerPoll = absl::Milliseconds(100);

std::string FolderOf(const std::string& run_dir) { return run_dir + "/control"; }

std::string JsonLine(const nlohmann::json& object) { return OneLineJson(object) + "\n"; }

absl::Status Append(const std::string& path, const std::string& line) {
  const Fd file(open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.is_open()) return absl::ErrnoToStatus(errno, "cannot open " + path);
  return WriteAll(file.get(), line) ? absl::OkStatus() : absl::ErrnoToStatus(errno, "cannot write " + path);
}

// Only what the folder's owner, or root, has written counts.
absl::Status CheckOwn(const std::string& path) {
  struct stat file;
  if (lstat(path.c_str(), &file) != 0) return absl::ErrnoToStatus(errno, path);
  if (!S_ISREG(file.st_mode)) return absl::PermissionDeniedError(path + " is no plain file");
  if (file.st_uid == geteuid() || file.st_uid == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(path, " is of the user ", file.st_uid, ", and the run is of ", geteuid()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlFolder>> ControlFolder::Open(const std::string& run_dir) {
  const std::string path = FolderOf(run_dir);
  QUARTET_RETURN_IF_ERROR(MakePrivateFolder(path));
  std::unique_ptr<ControlFolder> folder(new ControlFolder(path));
  if (const std::optional<ControlRequest> old = folder->Take()) {
    folder->Finish(absl::UnavailableError("the orchestrator that was asked has ended; another goes on with the run"));
  }
  return folder;
}

ControlFolder::~ControlFolder() {
  if (taken_.empty() && !Take().has_value()) return;
  Finish(absl::UnavailableError("the run has ended; nothing was done"));
}

std::optional<ControlRequest> ControlFolder::Take() {
  const std::string path = path_ + kRequest;
  struct stat file;
  if (!taken_.empty() || lstat(path.c_str(), &file) != 0) return std::nullopt;
  const absl::Status own = CheckOwn(path);
  const absl::StatusOr<std::string> text = own.ok() ? ReadFile(path) : absl::StatusOr<std::string>(own);
  std::error_code error;
  std::filesystem::remove(path, error);
  if (error) {
    QUARTET_LOG(kWarning) << "cannot remove " << path << ": " << error.message();
    return std::nullopt;
  }
  const nlohmann::json object = nlohmann::json::parse(text.ok() ? *text : "", nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || TextIn(object, "id").empty()) {
    QUARTET_LOG(kWarning) << "what was asked of the run is dropped: "
                          << (text.ok() ? absl::StrCat(path, " is no request: ", *text) : text.status().ToString());
    return std::nullopt;
  }
  taken_ = TextIn(object, "id");
  return ControlRequest{.id = taken_,
                        .action = TextIn(object, "action"),
                        .service = TextIn(object, "service"),
                        .programs_folder = TextIn(object, "programs_folder")};
}

void ControlFolder::Say(const std::string& text) { Answer(JsonLine({{"id", taken_}, {"text", text}})); }

void ControlFolder::Finish(const absl::Status& status, const std::string& text) {
  Answer(JsonLine({{"id", taken_},
                   {"code", static_cast<int>(status.code())},
                   {"text", status.ok() ? text : std::string(status.message())}}));
  taken_.clear();
}

void ControlFolder::Answer(const std::string& line) {
  const absl::Status written = Append(path_ + kAnswers, line);
  if (!written.ok()) QUARTET_LOG(kWarning) << "an answer is lost: " << written;
}

absl::Status AskRun(const std::string& run_dir, ControlRequest request,
                    const std::function<void(const std::string&)>& on_text,
                    const std::function<absl::Status()>& stopped) {
  const std::string folder = FolderOf(run_dir), path = folder + kRequest;
  if (!RunLock::HolderOf(run_dir).has_value()) {
    return absl::FailedPreconditionError(absl::StrCat("no run goes on in ", run_dir, ": no orchestrator uses it"));
  }
  struct stat info;
  if (stat(folder.c_str(), &info) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the run in ", run_dir, " takes no requests (yet): there is no ", folder,
                     "; PPO runs of this version take them once their services have accepted them"));
  }
  if (info.st_uid != geteuid() && geteuid() != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(folder, " is of another user; only a run's own user may change it"));
  }
  FileTail answers(folder + kAnswers);
  std::string lines;
  QUARTET_RETURN_IF_ERROR(answers.Read(&lines));  // to what was asked before
  request.id = RandomHexDigits(2);
  // Written beside and linked, so that it appears whole and over nobody else's.
  const std::string beside = absl::StrCat(folder, "/", request.id);
  QUARTET_RETURN_IF_ERROR(AtomicWriteFile(beside,
                                          JsonLine({{"id", request.id},
                                                    {"action", request.action},
                                                    {"service", request.service},
                                                    {"programs_folder", request.programs_folder}}),
                                          0600));
  const int linked = link(beside.c_str(), path.c_str());
  const int error = errno;
  unlink(beside.c_str());
  if (linked != 0 && error == EEXIST) {
    return absl::FailedPreconditionError(absl::StrCat("the run is being asked for something already: ", path));
  }
  if (linked != 0) return absl::ErrnoToStatus(error, "cannot write " + path);

  for (bool last_look = false;;) {
    QUARTET_RETURN_IF_ERROR(answers.Read(&lines));
    for (const nlohmann::json& answer : Records(lines)) {
      if (TextIn(answer, "id") != request.id) continue;
      if (!answer.contains("code")) {
        on_text(TextIn(answer, "text"));
        continue;
      }
      const auto code = static_cast<absl::StatusCode>(static_cast<int>(NumberIn(answer, "code", 2)));
      if (code == absl::StatusCode::kOk) on_text(TextIn(answer, "text"));
      return absl::Status(code, TextIn(answer, "text"));
    }
    if (last_look)
      return absl::UnavailableError("the orchestrator has ended without an answer; its run goes on by hand");
    if (absl::Status why = stopped(); !why.ok()) {
      if (unlink(path.c_str()) == 0) return why;
      return absl::Status(why.code(), absl::StrCat(why.message(), "; the run goes on with what it was asked for"));
    }
    // One that ends answers first.
    last_look = !RunLock::HolderOf(run_dir).has_value();
    if (!last_look) absl::SleepFor(kAnswerPoll);
  }
}

}  // namespace quartet
