// A run, whatever it computes: what stands around its loop.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "core/cancellation/cancellation.h"
#include "core/config/origins/origins.h"
#include "core/config/run_config.h"
#include "core/data/dataset.h"
#include "core/run_folder/checkpoints/checkpoint_record.h"
#include "core/run_folder/run_folder.h"
#include "core/run_folder/run_inputs.h"
#include "core/terminal/terminal_view.h"
#include "core/tokenizer/tokenizer.h"
#include "orchestrator/launch/requested_services.h"
#include "orchestrator/launch/service_launcher.h"
#include "orchestrator/session/plan_writer.h"
#include "proto/run_config.pb.h"
#include "viewer/monitor/monitor_server.h"
#include "viewer/page/page_writer.h"

namespace quartet {

struct RunOptions {
  // Start the services here; else they run already at config.services.*.listen, or `on_cluster` starts them.
  bool launch = false;
  // The run is to begin elsewhere, by Slurm or Ray: here it is looked at alone.
  bool on_cluster = false;
  // As ServiceLauncherOptions::trace.
  std::string trace = {};
  // An entry of run_dir that may be there before the run.
  std::string allowed_entry = {};
  // Where the configuration's values are from, for the run folder.
  ValueOrigins origins = {};
  // The command that continues the run, for the error of one that ends before its time; may be empty.
  std::string continue_command = {};
};

// The tokenizer of `model`, "actor" or "critic". Errors name the option.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const RunConfig& config, const std::string& model);

// The same for a run, whose prompts have one date from its beginning to its end. Where its chat template writes a date
// and data.template_date is not set, that becomes what it was before in a run that goes on, where `continues` says that
// it may, else `today`.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerOfRun(const std::string& model, bool continues,
                                                              absl::CivilDay today, RunConfig* config);

// What is called is called in this order, once each: ReadInputs, OpenFolder, StartServices, Begin, End. No service that
// was started is left when it is gone.
class RunSession {
 public:
  // Of one of kRunPrograms, or of an evaluation. `config` is resolved; `view` and `cancellation` outlive the session.
  RunSession(Program program, const RunConfig& config, const RunOptions& options, TerminalView& view,
             Cancellation& cancellation)
      : program_(program), config_(config), options_(options), view_(view), cancellation_(cancellation) {}

  // What can be wrong before a folder is made or a service started: run_dir, the configuration, what services will
  // load, the tokenizer; then `read` reads the run's rows. INVALID_ARGUMENT, but where another try may find it
  // otherwise (a disk, an address in use), or something is in run_dir's way.
  absl::Status ReadInputs(const std::function<absl::Status()>& read);
  // Makes the run's folder, or opens the one in which it goes on, and tells the trainers by the configuration what to
  // load. `rows` are the files of rows that it has read, those that it is evaluated by among them; none of an
  // evaluation. Errors as of ReadInputs.
  absl::Status OpenFolder(const std::vector<RunInput>& rows);
  // Of ReadInputs alone, in OpenFolder's place, where the run is to begin elsewhere: CheckChanges. Errors as of
  // ReadInputs.
  absl::Status CheckInputsUnchanged(const std::vector<RunInput>& rows) const;
  // If asked to, and puts their addresses into the configuration; before them, what monitor.listen asks for.
  absl::Status StartServices();

  // The services have accepted the run, which makes `steps` steps in all, and its folder has begun: from now on the
  // folder says that it goes on, and has a page that is kept up to date. Its loop asks for `cancellation`'s ending
  // between its steps from now on.
  void Begin(int64_t steps);
  // As PpoRun::ends_continuable.
  bool ends_continuable() const;
  // After Begin: a warning of the whole run, for its page, at the first step that is made here.
  void Warn(const std::string& warning);
  // A service listens there from now on: for whoever looks at the folder.
  void MoveTo(const std::string& service, const std::string& address);
  // How the run has ended, for its folder and its page where it has begun. Of an error what stands behind it is
  // returned: a service that ended by itself, if there is one, with the end of its log; and how the run is continued.
  absl::Status End(const absl::Status& status);

  Program program() const { return program_; }
  RunConfig& config() { return config_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  RunFolder& folder() { return *folder_; }
  // What the run goes on after; none in a new one.
  const std::optional<CheckpointRecord>& resume() const { return resume_; }
  // What has started the services; null where they were started by hand.
  ServiceStarter* starter();
  TerminalView& view() { return view_; }
  Cancellation& cancellation() { return cancellation_; }

  // Shows how far the checking of rows is on the live line, once it takes long enough to be asked about, and ends it
  // where the run is cancelled.
  RowProgress ShowChecking();

 private:
  std::vector<std::string> services() const { return ServicesOf(program_, config_); }
  // Whether train.load_checkpoint continues it. An evaluation begins in a new folder, and reads nothing that counts.
  bool continues() const { return program_ != Program::kEvaluate; }
  // Where its services listen.
  std::map<std::string, std::string> Addresses() const;
  absl::Status Explain(const absl::Status& status) const;
  // Of a run that goes on: which of its steps are not recorded any more.
  void SayMissing();
  // What goes wrong with these two is said in the log, and ends no run.
  void SayEvent(const std::string& kind, int64_t step, const std::string& text);
  void SayState(const std::string& state, const std::string& why);
  absl::Status WithContinuation(const absl::Status& status) const;

  const Program program_;
  RunConfig config_;
  RunOptions options_;
  TerminalView& view_;
  Cancellation& cancellation_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<RunFolder> folder_;
  std::optional<CheckpointRecord> resume_;
  bool had_begun_ = false;  // as RunStart's
  int64_t steps_ = 0;
  std::unique_ptr<PageWriter> page_;            // null before Begin and after End
  std::unique_ptr<MonitorServer> monitor_;      // null where nothing is to be served
  std::unique_ptr<PlanWriter> plan_;            // as page_, of PPO
  std::unique_ptr<ServiceLauncher> launcher_;   // null where the services run already
  std::optional<RequestedServices> requested_;  // those that a script has started
};

}  // namespace quartet
