#include "orchestrator/session/plan_writer.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/files/files.h"
#include "core/base/logging.h"
#include "core/base/time/pause.h"
#include "core/service/process/child_process.h"
#include "nlohmann/json.hpp"

namespace quartet {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(100);

}  // namespace

PlanWriter::PlanWriter(const std::string& run_dir, const std::string& program)
    : thread_([run_dir, program](const std::stop_token& stop) { Run(run_dir, program, stop); }) {}

void PlanWriter::Run(const std::string& run_dir, const std::string& program, const std::stop_token& stop) {
  std::error_code none;
  if (!std::filesystem::exists(program, none)) return;
  const std::string path = run_dir + "/plan.json", made = path + ".new";
  std::filesystem::remove(made, none);
  absl::StatusOr<std::unique_ptr<ChildProcess>> planner =
      ChildProcess::Start({.argv = {"/usr/bin/nice", "-n", "19", program,
                                    absl::StrCat("--config=", run_dir, "/run.textproto"), "--format=json"},
                           .environment = {{"OMP_NUM_THREADS", "1"}},
                           .log_file = made,
                           .own_process_group = true});
  if (!planner.ok()) {
    QUARTET_LOG(kWarning) << "the plan for the run's page: " << planner.status();
    return;
  }
  std::optional<ExitState> end;
  while (!end.has_value() && PauseFor(stop, kPoll)) end = (*planner)->Poll();
  const absl::StatusOr<std::string> text = ReadFile(made);
  const bool is_plan = text.ok() && nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false).is_object();
  if (end.has_value() && is_plan) {
    std::filesystem::rename(made, path, none);
  } else if (end.has_value()) {
    QUARTET_LOG(kWarning) << "the plan for the run's page (" << end->Describe() << "): " << text.value_or("");
  }
  std::filesystem::remove(made, none);
}

}  // namespace quartet
