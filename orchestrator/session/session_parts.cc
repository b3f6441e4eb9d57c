#include "orchestrator/session/session_parts.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/base/files.h"
#include "core/base/status_macros.h"
#include "orchestrator/run_folder/checkpoint_search.h"

namespace quartet {
namespace {

// How long after a failed call a service's end is waited for: a broken connection comes before the exit status.
constexpr absl::Duration kDeathPatience = absl::Seconds(3);

}  // namespace

std::vector<std::string> ServicesOf(Program program, const RunConfig& config) {
  switch (program) {
    case Program::kSft:
      return kSftServices;
    case Program::kDpo:
      return kDpoServices;
    case Program::kRewardModel:
      return kRewardModelServices;
    default:
      return PpoServices(config);
  }
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const RunConfig& config, const std::string& model) {
  const std::string& chat_template = config.data().tokenizer_chat_template();
  const std::string& folder = TrainerOf(config, model).pretrain();
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(folder, chat_template);
  if (tokenizer.ok()) return tokenizer;
  const absl::string_view message = tokenizer.status().message();
  const bool of_template = !chat_template.empty() && absl::StartsWith(message, chat_template);
  return absl::Status(tokenizer.status().code(),
                      absl::StrCat(of_template ? "data.tokenizer_chat_template" : model + ".pretrain", ": ", message));
}

std::function<void(int64_t, int64_t)> ShowChecking(TerminalView& view) {
  constexpr int64_t kShown = 1000;
  return [&view](int64_t done, int64_t all) {
    if (done == kShown) view.Begin("checking rows", all);
    if (done % kShown == 0) view.Progress(done);
  };
}

absl::Status AsWrongInput(const absl::Status& status) { return absl::InvalidArgumentError(status.message()); }

absl::StatusOr<std::unique_ptr<ServiceLauncher>> LaunchServices(const SessionOptions& options,
                                                                const std::vector<std::string>& services,
                                                                const RunFolder& folder, TerminalView& view,
                                                                Cancellation& cancellation, RunConfig* config) {
  if (!options.launch) return nullptr;
  QUARTET_RETURN_IF_ERROR(AtomicWriteFile(folder.launch_config_path(), PrintRunConfig(*config)));
  ServiceLauncherOptions launcher_options;
  launcher_options.services = services;
  launcher_options.programs_folder = ServiceLauncher::DefaultProgramsFolder();
  launcher_options.config_path = folder.launch_config_path();
  launcher_options.logs_folder = folder.logs_path();
  launcher_options.trace = options.trace;
  launcher_options.cancellation = &cancellation;
  view.Begin("starting services", static_cast<int64_t>(services.size()));
  launcher_options.on_loading = [&view](int64_t up, const std::string& loading) { view.Progress(up, loading); };
  absl::StatusOr<std::unique_ptr<ServiceLauncher>> launcher = ServiceLauncher::Start(launcher_options);
  view.End();
  if (!launcher.ok()) return launcher.status();
  std::vector<std::string> places;
  for (const auto& [service, address] : (*launcher)->addresses()) {
    MutablePlacementOf(config, service)->set_listen(address);
    places.push_back(absl::StrCat(service, " ", address));
  }
  view.Print(absl::StrCat("services run: ", absl::StrJoin(places, ", ")));
  return launcher;
}

absl::Status Explain(const absl::Status& status, ServiceLauncher* launcher, const Cancellation& cancellation) {
  const bool lost_connection = absl::IsUnavailable(status) || absl::IsInternal(status) || absl::IsCancelled(status);
  const bool interrupted = absl::IsCancelled(cancellation.status());
  if (launcher == nullptr || status.ok() || interrupted) return status;
  absl::Status death = launcher->FindDeadService(lost_connection ? kDeathPatience : absl::ZeroDuration());
  return death.ok() ? status : death;
}

absl::Status WithContinuation(const absl::Status& status, const SessionOptions& options, const RunFolder& folder,
                              const TrainConfig& train) {
  // Before the services have accepted the run there is nothing to continue.
  if (options.continue_command.empty() || !folder.has_begun()) return status;
  const std::optional<CheckpointRecord> newest = NewestRecord(folder.checkpoints_path());
  if (!newest.has_value() && !absl::IsCancelled(status)) return status;
  std::string how, command = options.continue_command;
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
    if (models_alone) absl::StrAppend(&command, " --set=run_dir=", folder.path(), "_2");
  }
  if (!options.launch) {
    absl::StrAppend(&how, ", start the trainers again",
                    newest.has_value() ? " with --set=train.load_checkpoint=true" : "", ", then");
  }
  return absl::Status(status.code(), absl::StrCat(status.message(), "\n", how, ":\n  ", command));
}

}  // namespace quartet
