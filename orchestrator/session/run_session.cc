#include "orchestrator/session/run_session.h"

#include <cstdlib>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"
#include "core/checkpoint/run_checkpoints.h"
#include "core/config/services.h"
#include "core/config/step_range.h"
#include "core/config/template_date.h"
#include "core/model/lora.h"
#include "core/run_folder/checkpoints/checkpoint_search.h"
#include "core/run_folder/phase_file.h"
#include "core/run_folder/run_inputs.h"
#include "core/run_folder/run_start.h"
#include "core/terminal/continue_command.h"
#include "orchestrator/checks/input_check.h"
#include "orchestrator/launch/launch_here.h"
#include "orchestrator/preflight/preflight.h"
#include "orchestrator/session/warning.h"

namespace quartet {
namespace {

// How long after a failed call a service's end is waited for: a broken connection comes before the exit status.
constexpr absl::Duration kDeathPatience = absl::Seconds(3);

// An error of a run that has not begun. What another try may not meet keeps its code (1 of Finish); all else is wrong
// in what the run is told or reads, and stays so (2).
absl::Status BeforeItBegins(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnknown:        // what the system says of a disk that fails
    case absl::StatusCode::kAlreadyExists:  // 2 as it is
      return status;
    default:
      return absl::InvalidArgumentError(status.message());
  }
}

// One of a run that has begun. What is missing or in the way then has come to be so, and another try, which looks
// before it begins, says whether it still is.
absl::Status OnceItHasBegun(const absl::Status& status) {
  const bool by_itself = absl::IsNotFound(status) || absl::IsAlreadyExists(status) || absl::IsPermissionDenied(status);
  return by_itself ? absl::UnknownError(status.message()) : status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const RunConfig& config, const std::string& model) {
  const std::string& chat_template = config.data().tokenizer_chat_template();
  QUARTET_ASSIGN_OR_RETURN(const std::string folder,
                           Prefixed(model + ".pretrain", TokenizerFolder(TrainerOf(config, model).pretrain())));
  QUARTET_ASSIGN_OR_RETURN(const std::optional<absl::CivilDay> date, TemplateDate(config.data()));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      Tokenizer::Load(folder, {chat_template, date, config.data().chat_template_kwargs()});
  if (tokenizer.ok()) return tokenizer;
  const absl::string_view message = tokenizer.status().message();
  if (absl::StartsWith(message, "chat_template_kwargs")) {
    return absl::Status(tokenizer.status().code(), absl::StrCat("data.", message));
  }
  const bool of_template = !chat_template.empty() && absl::StartsWith(message, chat_template);
  return absl::Status(tokenizer.status().code(),
                      absl::StrCat(of_template ? "data.tokenizer_chat_template" : model + ".pretrain", ": ", message));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerOfRun(const std::string& model, bool continues,
                                                              absl::CivilDay today, RunConfig* config) {
  QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(*config, model));
  DataConfig& data = *config->mutable_data();
  if (!data.apply_chat_template() || !tokenizer->writes_date() || !data.template_date().empty()) return tokenizer;
  const std::optional<RunConfig> before = continues ? ConfigBefore(*config) : std::nullopt;
  if (before.has_value()) data.set_template_date(before->data().template_date());
  if (data.template_date().empty()) data.set_template_date(absl::FormatCivilTime(today));
  return LoadTokenizer(*config, model);
}

RowProgress RunSession::ShowChecking() {
  constexpr int64_t kShown = 1000;
  return [this](int64_t done, int64_t all) {
    if (done == kShown) view_.Begin("checking rows", all);
    if (done % kShown == 0) view_.Progress(done);
    return cancellation_.status();
  };
}

absl::Status RunSession::ReadInputs(const std::function<absl::Status()>& read) {
  QUARTET_RETURN_IF_ERROR(BeforeItBegins(continues() ? CheckRunDir(config_, options_.allowed_entry)
                                                     : CheckNewRunDir(config_, options_.allowed_entry)));
  const auto all = [&]() -> absl::Status {
    QUARTET_RETURN_IF_ERROR(CheckFor(config_, program_));
    if (program_ == Program::kDpo || (program_ == Program::kPpo && UsesReference(config_))) {
      QUARTET_RETURN_IF_ERROR(CheckReferenceIsClear(config_));
    }
    if (!options_.trace.empty() && !config_.train().trace_steps().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("train.trace_steps is ", config_.train().trace_steps(), ", and --trace=", options_.trace,
                       " has the ranks write all that they do to files: give one of the two"));
    }
    QUARTET_RETURN_IF_ERROR(CheckInputs(config_, program_,
                                        options_.launch       ? ServicesStart::kHere
                                        : options_.on_cluster ? ServicesStart::kOnCluster
                                                              : ServicesStart::kByOthers));
    const absl::CivilDay today = absl::ToCivilDay(absl::Now(), absl::LocalTimeZone());
    const std::string model = LearningSection(program_);
    QUARTET_ASSIGN_OR_RETURN(tokenizer_, LoadTokenizerOfRun(model, continues(), today, &config_));
    if (const std::string& date = config_.data().template_date(); !date.empty() && !tokenizer_->writes_date()) {
      view_.Print(absl::StrCat("warning: data.template_date is ", date, ", and the chat template of ", model,
                               ".pretrain writes no date"));
    }
    return read();
  };
  const absl::Status status = all();
  view_.End();
  // What it was at when it was told to end is not wrong.
  QUARTET_RETURN_IF_ERROR(cancellation_.status());
  return BeforeItBegins(WithOrigin(status, options_.origins));
}

absl::Status RunSession::OpenFolder(const std::vector<RunInput>& rows) {
  RunConfig read = config_;
  ClearUnread(program_, &read);
  const std::string text = PrintRunConfig(read, options_.origins);
  if (!continues()) {
    absl::StatusOr<std::unique_ptr<RunFolder>> folder = RunFolder::Create(config_, options_.allowed_entry);
    QUARTET_RETURN_IF_ERROR(BeforeItBegins(folder.status()));
    folder_ = *std::move(folder);
    folder_->UseConfigText(text);
    return absl::OkStatus();
  }
  std::vector<RunInput> files = ModelInputs(config_);
  files.insert(files.end(), rows.begin(), rows.end());
  absl::StatusOr<RunStart> opened =
      OpenRun(config_, options_.allowed_entry, files, [this] { return cancellation_.status(); });
  QUARTET_RETURN_IF_ERROR(BeforeItBegins(opened.status()));
  RunStart start = *std::move(opened);
  folder_ = std::move(start.folder);
  resume_ = std::move(start.resume);
  had_begun_ = start.had_begun;
  folder_->UseConfigText(text);
  for (const std::string& note : start.notes) view_.Print(note);
  if (!resume_.has_value()) return absl::OkStatus();
  const std::string checkpoint = absl::StrCat(folder_->checkpoints_path(), "/", CheckpointId(resume_->step));
  const std::vector<std::string> driven = services();
  for (const auto& [service, section, model, state] : kTrainers) {
    if (std::ranges::find(driven, service) != driven.end()) {
      MutableTrainerOf(&config_, section)->set_load_checkpoint(absl::StrCat(checkpoint, "/", state));
    }
    if (resume_->state_of(section)) QUARTET_RETURN_IF_ERROR(BeforeItBegins(CheckLoadedState(config_, section)));
  }
  return absl::OkStatus();
}

absl::Status RunSession::CheckInputsUnchanged(const std::vector<RunInput>& rows) const {
  std::vector<RunInput> files = ModelInputs(config_);
  files.insert(files.end(), rows.begin(), rows.end());
  return BeforeItBegins(CheckChanges(config_, std::move(files)));
}

absl::Status RunSession::StartServices() {
  if (!config_.monitor().listen().empty()) {
    absl::StatusOr<std::unique_ptr<MonitorServer>> monitor = MonitorServer::Start(config_, folder_->path());
    QUARTET_RETURN_IF_ERROR(BeforeItBegins(monitor.status()));
    monitor_ = *std::move(monitor);
  }
  if (!options_.launch) return absl::OkStatus();
  for (const Finding& finding : FindProblemsHere(config_, services())) view_.Print("warning: " + Describe(finding));
  QUARTET_ASSIGN_OR_RETURN(launcher_, LaunchHere({.services = services(),
                                                  .config_path = folder_->launch_config_path(),
                                                  .logs_folder = folder_->logs_path(),
                                                  .trace = options_.trace},
                                                 "starting services", &config_, view_, cancellation_));
  std::vector<std::string> places;
  for (const auto& [service, address] : launcher_->addresses()) places.push_back(absl::StrCat(service, " ", address));
  view_.Print(absl::StrCat("services run: ", absl::StrJoin(places, ", ")));
  return absl::OkStatus();
}

std::map<std::string, std::string> RunSession::Addresses() const {
  std::map<std::string, std::string> addresses;
  for (const std::string& service : services()) addresses[service] = PlacementOf(config_, service).listen();
  return addresses;
}

void RunSession::SayState(const std::string& state, const std::string& why) {
  QUARTET_LOG_IF_ERROR(folder_->WriteState(
      {.program = ExecutableName(program_), .state = state, .why = why, .steps = steps_, .services = Addresses()}));
}

void RunSession::SayEvent(const std::string& kind, int64_t step, const std::string& text) {
  QUARTET_LOG_IF_ERROR(folder_->WriteEvent(kind, step, ExecutableName(program_), text));
}

void RunSession::Warn(const std::string& warning) {
  SayEvent("warning", resume_.has_value() ? resume_->step : 0, warning);
}

ServiceStarter* RunSession::starter() {
  const char* requests = std::getenv(kServiceRequests);
  if (launcher_ != nullptr || requests == nullptr || *requests == '\0') return launcher_.get();
  if (!requested_.has_value()) {
    requested_.emplace(RequestedServices::Options{.folder = requests,
                                                  .programs_folder = ServiceLauncher::DefaultProgramsFolder(),
                                                  .logs_folder = folder_->logs_path(),
                                                  .addresses = Addresses(),
                                                  .cancellation = &cancellation_});
  }
  return &*requested_;
}

void RunSession::MoveTo(const std::string& service, const std::string& address) {
  MutablePlacementOf(&config_, service)->set_listen(address);
  SayState("running", "");
}

bool RunSession::ends_continuable() const {
  return config_.train().save_optimizer() || !options_.origins.contains("train.save_optimizer");
}

void RunSession::Begin(int64_t steps) {
  steps_ = steps;
  cancellation_.PromiseToEnd();
  const int every = config_.train().save_steps();
  view_.Print(absl::StrCat(
      "checkpoints: ",
      every > 0 ? absl::StrCat("every ", every, " steps and at the end") : "at the end alone (train.save_steps is 0)",
      "; Ctrl-C ends the run after its step, with one, a second Ctrl-C at once"));
  SayState("running", "");
  if (resume_.has_value()) {
    SayEvent("restart", resume_->step, absl::StrCat("the run goes on after step ", resume_->step));
    SayMissing();
  } else if (had_begun_) {
    SayEvent("restart", 0, "the run had no checkpoint: it begins anew");
  }
  page_ = std::make_unique<PageWriter>(folder_->path());
  if (program_ == Program::kPpo) {
    plan_ = std::make_unique<PlanWriter>(folder_->path(), ServiceLauncher::DefaultProgramsFolder() + "/planner/plan");
  }
  if (monitor_ != nullptr) view_.Print(absl::StrCat("page: ", monitor_->url(), " (and ", monitor_->url(), "metrics)"));
  const auto phases = std::make_shared<PhaseFile>(folder_->path());
  view_.OnPhase([phases](const std::string& phase) { phases->Say(phase); });
}

void RunSession::SayMissing() {
  std::vector<int64_t> missing = folder_->missing_steps();
  // That of the last one is in the checkpoint, where it is not recorded before it.
  if (!missing.empty() && missing.back() == resume_->step - 1 && !resume_->metrics.values().empty()) missing.pop_back();
  if (missing.empty()) return;
  const std::string text =
      absl::StrCat(folder_->metrics_path(), " has no lines of steps ", DescribeSteps(missing),
                   ", which the run has made: it was cut short or damaged. They stay missing in all that is shown");
  QUARTET_LOG_IF_ERROR(ShowWarning(view_, *folder_, resume_->step, ExecutableName(program_), text));
}

absl::Status RunSession::End(const absl::Status& status) {
  // What was asked to end and has is as if it were cancelled then.
  if (!status.ok() && status == cancellation_.ending()) cancellation_.Cancel(status);
  absl::Status explained = status.ok() ? status : Explain(status);
  if (page_ == nullptr) return explained;
  view_.OnPhase({});
  if (status.ok()) {
    SayState("finished", "");
  } else {
    SayState(absl::IsCancelled(cancellation_.status()) ? "stopped" : "failed", std::string(explained.message()));
  }
  plan_ = nullptr;
  const absl::Status page = page_->End();
  page_ = nullptr;
  monitor_ = nullptr;
  view_.Print(page.ok() ? absl::StrCat("page: ", folder_->path(), "/report.html")
                        : absl::StrCat("the run's page could not be written: ", page.message()));
  return OnceItHasBegun(explained);
}

absl::Status RunSession::Explain(const absl::Status& status) const {
  const bool lost_connection = absl::IsUnavailable(status) || absl::IsInternal(status) || absl::IsCancelled(status);
  const bool interrupted = absl::IsCancelled(cancellation_.status());
  if (launcher_ == nullptr || interrupted) {
    // That a service has given up a call is no sign that the run was stopped.
    const bool given_up = absl::IsCancelled(status) && !interrupted;
    return WithContinuation(given_up ? absl::UnavailableError(status.message()) : status);
  }
  const absl::Status death = launcher_->FindDeadService(lost_connection ? kDeathPatience : absl::ZeroDuration());
  return WithContinuation(death.ok() ? status : death);
}

absl::Status RunSession::WithContinuation(const absl::Status& status) const {
  const TrainConfig& train = config_.train();
  // Before the services have accepted the run there is nothing to continue.
  if (options_.continue_command.empty() || !folder_->has_begun()) return status;
  const std::optional<CheckpointRecord> newest = NewestRecord(folder_->checkpoints_path());
  if (!newest.has_value() && !absl::IsCancelled(status)) return status;
  std::string how, command = options_.continue_command;
  if (newest.has_value()) {
    how = absl::StrCat("To continue after step ", newest->step);
  } else {
    const bool models_alone = train.save_steps() > 0 && !train.save_optimizer();
    how = models_alone
              ? "No checkpoint of this run can be continued from (train.save_optimizer is false); to begin anew with "
                "some that can, in another folder"
              : "There is no checkpoint to continue from yet (train.save_steps); to begin anew";
    // Else it would be lost in the same way once more.
    if (train.save_steps() == 0) absl::StrAppend(&command, " --set=train.save_steps=10");
    if (!train.save_optimizer()) absl::StrAppend(&command, " --set=train.save_optimizer=true");
    if (models_alone) absl::StrAppend(&command, " ", ShellWord(absl::StrCat("--set=run_dir=", folder_->path(), "_2")));
  }
  if (!options_.launch) {
    absl::StrAppend(&how, ", start the trainers again",
                    newest.has_value() ? " with --set=train.load_checkpoint=true" : "", ", then");
  }
  return absl::Status(status.code(), absl::StrCat(status.message(), "\n", how, ":\n  ", command));
}

}  // namespace quartet
