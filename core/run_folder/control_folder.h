// How a run that goes on is asked for something: files in its folder, which whoever may write there, its own user, puts
// there from any host that sees it. Nothing listens.
//
//   control/request.json   what is asked, {"id", "action", "service", "programs_folder"}; one at a time
//   control/answers.jsonl  {"id", "text"} as the work goes on, at last {"id", "code", "text"}
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quartet {

struct ControlRequest {
  std::string id;
  // "upgrade", "hold" or "release".
  std::string action;
  std::string service;
  std::string programs_folder;  // of "upgrade"
};

// The orchestrator's side. One thread.
class ControlFolder {
 public:
  // Makes run_dir/control, for its owner alone; what was asked of an earlier orchestrator goes. PERMISSION_DENIED where
  // it is there, and another user's.
  static absl::StatusOr<std::unique_ptr<ControlFolder>> Open(const std::string& run_dir);
  // Answers what is taken, or stands there, that the run has ended.
  ~ControlFolder();

  // What is asked, if anything is and nothing that was taken is unfinished; from then on it is taken. What cannot be
  // read, or is of another user, is answered and dropped.
  std::optional<ControlRequest> Take();
  // About what is taken: how far it is, and how it ended. What goes wrong with the answer itself is said in the log.
  void Say(const std::string& text);
  void Finish(const absl::Status& status, const std::string& text = "");

 private:
  explicit ControlFolder(std::string path) : path_(std::move(path)) {}
  void Answer(const std::string& line);

  const std::string path_;
  std::string taken_;  // the id of what is taken; "" where nothing is
};

// Asks the run in `run_dir` and waits for the answer; `on_text` is told what it says meanwhile. FAILED_PRECONDITION
// where no orchestrator uses the folder, or somebody else is asking it; UNAVAILABLE where the orchestrator ends without
// an answer. Where `stopped` says why to wait no longer, that: what was not taken yet is taken back, what was goes on.
absl::Status AskRun(const std::string& run_dir, ControlRequest request,
                    const std::function<void(const std::string&)>& on_text,
                    const std::function<absl::Status()>& stopped);

}  // namespace quartet
