#include "orchestrator/upgrades/upgrades.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/base/time/stopwatch.h"
#include "core/clients/weight_sync.h"
#include "core/config/run_config.h"
#include "core/config/services.h"
#include "core/version/version.h"
#include "orchestrator/checks/start_check.h"
#include "orchestrator/upgrades/program_version.h"
#include "orchestrator/upgrades/request_check.h"

namespace quartet {
namespace {

constexpr absl::Duration kHoldPoll = absl::Milliseconds(100);

std::string LoadsState(const TrainerNames& trainer, const std::string& folder) {
  return absl::StrCat("--set=", trainer.section, ".load_checkpoint=", folder);
}
std::string SourceOf(const ServiceInfo& info) { return info.version().empty() ? "an unknown build" : info.version(); }

ServiceClient& ClientOf(Services& services, const std::string& service) {
  for (ServiceClient* client : services.all()) {
    if (client->service() == service) return *client;
  }
  QUARTET_CHECK(false) << service;
  return *services.scorer;
}

const ServiceInfo& InfoOf(const Handshake& handshake, const std::string& service) {
  if (service == "rollout") return handshake.rollout;
  if (service == "scorer") return handshake.scorer;
  return service == "policy_trainer" ? handshake.policy_trainer : *handshake.critic_trainer;
}

bool AreOneProcess(const ServiceInfo& a, const ServiceInfo& b) {
  return std::equal(a.ranks().begin(), a.ranks().end(), b.ranks().begin(), b.ranks().end(),
                    [](const RankInfo& one, const RankInfo& other) {
                      return one.pid() == other.pid() && one.endpoint() == other.endpoint();
                    });
}

// The same weights have the same hashes, whoever publishes them.
absl::Status CheckSameWeights(const WeightManifest& before, const WeightManifest& after) {
  if (before.dtype() != after.dtype() || before.tensors_size() != after.tensors_size()) {
    return absl::DataLossError(absl::StrCat("it publishes ", after.tensors_size(), " tensors of ", after.dtype(),
                                            " instead of ", before.tensors_size(), " of ", before.dtype()));
  }
  for (int i = 0; i < before.tensors_size(); ++i) {
    const TensorEntry &was = before.tensors(i), &is = after.tensors(i);
    if (was.name() == is.name() && was.hash() == is.hash()) continue;
    return absl::DataLossError(
        absl::StrCat("its tensor ", is.name(), " is not that which the one before it has saved"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Upgrades>> Upgrades::Open(const UpgradeContext& context) {
  QUARTET_ASSIGN_OR_RETURN(std::unique_ptr<ControlFolder> control, ControlFolder::Open(context.folder.path()));
  return std::unique_ptr<Upgrades>(new Upgrades(context, std::move(control)));
}

bool Upgrades::IsAsked() {
  if (!asked_.has_value()) asked_ = control_->Take();
  return asked_.has_value();
}

void Upgrades::Say(const std::string& text) {
  context_.view.Print(text);
  control_->Say(text);
}

void Upgrades::WriteEvent(const std::string& kind, const std::string& text, const StepBoundary& boundary) {
  QUARTET_LOG_IF_ERROR(context_.folder.WriteEvent(kind, boundary.steps_done - 1, "orchestrator", text));
}

absl::Status Upgrades::CheckPrograms(const std::string& service, const std::string& folder) const {
  QUARTET_RETURN_IF_ERROR(CheckHasPrograms(service, folder));
  const std::string path = absl::StrCat(folder, "/", service, "/", service);
  // A run that is asked to end waits for no program.
  const Cancellation::GiveUpScope may_be_left(&context_.cancellation);
  QUARTET_ASSIGN_OR_RETURN(const ProgramVersion version,
                           ReadProgramVersion(path, [this] { return context_.cancellation.status(); }));
  return CheckProtocol(path, version.text, version.min_protocol, version.protocol);
}

absl::StatusOr<Upgrades::Before> Upgrades::Look(const std::string& service, const StepBoundary& boundary) {
  Before before;
  QUARTET_ASSIGN_OR_RETURN(before.info, ClientOf(context_.services, service).GetInfo());
  QUARTET_ASSIGN_OR_RETURN(
      before.answers, AskCanary(service, context_.config, context_.services, boundary.canary, boundary.policy_version));
  const TrainerNames* const trainer = FindTrainer(service);
  if (trainer == nullptr) return before;
  QUARTET_ASSIGN_OR_RETURN(const auto checkpoint, boundary.checkpoint());
  const auto& [record, folder] = checkpoint;
  before.state = record.state_of(trainer->section);
  before.state_folder = absl::StrCat(folder, "/", trainer->state);
  if (!before.state.has_value()) return absl::InternalError(folder + " has no training state of the " + service);
  return before;
}

void Upgrades::MoveTo(const std::string& service, const std::string& address) {
  ClientOf(context_.services, service).MoveTo(address);
  MutablePlacementOf(&as_started_, service)->set_listen(address);
  if (context_.on_moved) context_.on_moved(service, address);
}

absl::StatusOr<std::string> Upgrades::TakeOn(const std::string& service, const Before& before,
                                             const StepBoundary& boundary) {
  const TrainerNames* const trainer = FindTrainer(service);
  if (trainer != nullptr) MutableTrainerOf(&as_started_, trainer->section)->set_load_checkpoint(before.state_folder);
  QUARTET_ASSIGN_OR_RETURN(
      const Handshake handshake,
      ShakeHands(context_.services, as_started_, context_.tokenizer_vocab_size, context_.view.ShowLoading()));
  const ServiceInfo& info = InfoOf(handshake, service);
  if (trainer != nullptr) {
    QUARTET_RETURN_IF_ERROR(CheckResumedTrainer(info, *before.state, trainer->section, before.state_folder));
  }
  const auto step = static_cast<uint64_t>(boundary.steps_done - 1);
  std::string weights;
  if (boundary.published.has_value() && service == "policy_trainer") {
    QUARTET_ASSIGN_OR_RETURN(const PublishReply reply,
                             context_.services.policy_trainer->Publish(step, boundary.policy_version));
    QUARTET_RETURN_IF_ERROR(CheckSameWeights(*boundary.published, reply.manifest()));
    *boundary.published = reply.manifest();
    weights = absl::StrCat("; the same weights, ", reply.manifest().tensors_size(), " tensors");
  }
  if (boundary.published.has_value() && service == "rollout") {
    QUARTET_RETURN_IF_ERROR(TakeWeights(*context_.services.rollout, step, *boundary.published).status());
    weights = absl::StrCat("; it has weights ", boundary.policy_version);
  }
  if (info.http_url() != before.info.http_url()) absl::StrAppend(&weights, "; it answers HTTP at ", info.http_url());
  QUARTET_ASSIGN_OR_RETURN(
      const std::vector<CanaryNumbers> answers,
      AskCanary(service, context_.config, context_.services, boundary.canary, boundary.policy_version));
  QUARTET_ASSIGN_OR_RETURN(const std::string compared,
                           CompareCanary(before.answers, answers, context_.config.train().max_upgrade_diff_mean()));
  return absl::StrCat(SourceOf(before.info), " -> ", SourceOf(info), weights, "; ", compared);
}

absl::StatusOr<std::string> Upgrades::StartAndTakeOn(const std::string& service, const std::string& programs_folder,
                                                     const Before& before, const StepBoundary& boundary) {
  std::vector<std::string> arguments;
  if (const TrainerNames* const trainer = FindTrainer(service)) {
    arguments.push_back(LoadsState(*trainer, before.state_folder));
  }
  QUARTET_ASSIGN_OR_RETURN(const std::string address,
                           context_.starter->StartService(service, programs_folder, arguments));
  MoveTo(service, address);
  absl::StatusOr<std::string> taken = TakeOn(service, before, boundary);
  if (taken.ok()) {
    QUARTET_RETURN_IF_ERROR(context_.starter->KeepService(service));
  } else {
    QUARTET_RETURN_IF_ERROR(Prefixed(absl::StrCat(taken.status().message(), "; and it does not end"),
                                     context_.starter->StopService(service)));
  }
  return taken;
}

absl::StatusOr<absl::StatusOr<std::string>> Upgrades::Replace(const ControlRequest& request,
                                                              const StepBoundary& boundary) {
  const std::string& service = request.service;
  const auto look = [&]() -> absl::StatusOr<Before> {
    if (context_.starter == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("this run's services were started by hand, so nothing here can replace the ", service,
                       ": hold the run (--hold), replace it where it is, release the run (--release)"));
    }
    QUARTET_RETURN_IF_ERROR(CheckPrograms(service, request.programs_folder));
    return Look(service, boundary);
  };
  const absl::StatusOr<Before> before = look();
  // What is wrong with the run itself ends it.
  QUARTET_RETURN_IF_ERROR(context_.cancellation.status());
  if (!before.ok()) return absl::StatusOr<std::string>(before.status());

  Say(absl::StrCat("after step ", boundary.steps_done, ": the ", service, " of ", SourceOf(before->info),
                   " is stopped"));
  const Stopwatch taken_so_far;
  QUARTET_RETURN_IF_ERROR(context_.starter->StopService(service));
  const absl::StatusOr<std::string> replaced = StartAndTakeOn(service, request.programs_folder, *before, boundary);
  if (replaced.ok()) {
    return absl::StatusOr<std::string>(
        absl::StrFormat("the %s is replaced, in %.1f s: %s", service, taken_so_far.Seconds(), *replaced));
  }
  QUARTET_RETURN_IF_ERROR(context_.cancellation.status());
  Say(absl::StrCat("it does not do: ", replaced.status().message(), "\nthe one before it comes back"));
  const absl::StatusOr<std::string> back =
      StartAndTakeOn(service, context_.starter->ProgramsFolderOf(service), *before, boundary);
  if (!back.ok()) {
    return absl::Status(back.status().code(),
                        absl::StrCat("the ", service, " could not be replaced (", replaced.status().message(),
                                     "), and the one before it does not come back: ", back.status().message()));
  }
  return absl::StatusOr<std::string>(absl::Status(
      replaced.status().code(),
      absl::StrFormat("the %s is as it was before, after a pause of %.1f s. Its replacement did not do: %s", service,
                      taken_so_far.Seconds(), replaced.status().message())));
}

absl::Status Upgrades::Hold(const std::string& service, const StepBoundary& boundary) {
  const absl::StatusOr<Before> before = Look(service, boundary);
  QUARTET_RETURN_IF_ERROR(context_.cancellation.status());
  if (!before.ok()) {
    control_->Finish(before.status());
    return absl::OkStatus();
  }
  const std::string address = ClientOf(context_.services, service).address();
  const TrainerNames* const trainer = FindTrainer(service);
  const std::string with = trainer != nullptr ? ", with " + LoadsState(*trainer, before->state_folder) : "";
  const std::string text = absl::StrCat("the run is held after step ", boundary.steps_done, ": end the ", service,
                                        " and start another at ", address, with, "; then release the run");
  context_.view.PrintAndBegin(text);
  control_->Finish(absl::OkStatus(), text);
  WriteEvent("upgrade", text, boundary);
  const Stopwatch taken_so_far;
  while (true) {
    QUARTET_RETURN_IF_ERROR(context_.cancellation.status());
    if (!context_.cancellation.ending().ok()) return absl::OkStatus();
    const std::optional<ControlRequest> request = control_->Take();
    if (!request.has_value()) {
      absl::SleepFor(kHoldPoll);
      continue;
    }
    if (request->action != "release") {
      control_->Finish(
          absl::FailedPreconditionError(absl::StrCat("the run is held for the ", service, "; release it")));
      continue;
    }
    MoveTo(service, address);
    const absl::StatusOr<ServiceInfo> info = ClientOf(context_.services, service).GetInfo();
    const absl::StatusOr<std::string> taken =
        info.ok() && AreOneProcess(*info, before->info) ? "is the one that it was" : TakeOn(service, *before, boundary);
    QUARTET_RETURN_IF_ERROR(context_.cancellation.status());
    if (!taken.ok()) {
      control_->Finish(absl::Status(taken.status().code(), absl::StrCat(taken.status().message(),
                                                                        "\nThe run is still held: put it right, or "
                                                                        "start the one before it again, and release")));
      continue;
    }
    const std::string done =
        absl::StrFormat("the run goes on, after %.1f s: %s %s", taken_so_far.Seconds(), service, *taken);
    context_.view.Print(done);
    WriteEvent("upgrade", done, boundary);
    control_->Finish(absl::OkStatus(), done);
    return absl::OkStatus();
  }
}

absl::Status Upgrades::Do(const StepBoundary& boundary) {
  QUARTET_CHECK(asked_.has_value());
  const ControlRequest request = *std::exchange(asked_, std::nullopt);
  absl::Status wrong = CheckCanBeReplaced(PpoServices(context_.config), context_.config, request.service);
  if (wrong.ok() && request.action != "upgrade" && request.action != "hold") {
    wrong = absl::FailedPreconditionError(request.action == "release"
                                              ? "the run is not held"
                                              : absl::StrCat("the run knows no \"", request.action, "\""));
  }
  if (!wrong.ok()) {
    control_->Finish(wrong);
    return absl::OkStatus();
  }
  context_.view.Begin(absl::StrCat(request.action, " of the ", request.service));
  if (request.action == "hold") return Hold(request.service, boundary);
  absl::StatusOr<absl::StatusOr<std::string>> outcome = Replace(request, boundary);
  if (!outcome.ok()) {
    control_->Finish(absl::Status(outcome.status().code(), absl::StrCat(outcome.status().message(),
                                                                        "\nThe run ends; it goes on after its "
                                                                        "newest checkpoint when it is started again")));
    return outcome.status();
  }
  const absl::StatusOr<std::string>& done = *outcome;
  const std::string text = done.ok() ? *done : absl::StrCat("no upgrade: ", done.status().message());
  context_.view.Print(text);
  WriteEvent(done.ok() ? "upgrade" : "warning", text, boundary);
  control_->Finish(done.status(), text);
  return absl::OkStatus();
}

}  // namespace quartet
