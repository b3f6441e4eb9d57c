// Tells how a run stands: one that goes on, that hangs, or that is over.
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/command_line/command_line.h"
#include "core/errors/shown.h"
#include "viewer/run_status/run_status.h"

namespace quartet {
namespace {

absl::Status ShowStatus(const std::string& run_dir, int64_t patience) {
  QUARTET_ASSIGN_OR_RETURN(RunStatus status, ReadRunStatus(run_dir));
  // Services that a run has started end with it; others may go on.
  AskServices(absl::Seconds(patience), &status);
  std::fputs(Shown(PrintRunStatus(status, absl::Now())).c_str(), stdout);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  InitLogging(argv[0], "status", -1);
  std::string run_dir;
  int64_t patience = 5;
  const CommandLine line = {
      .program = "status",
      .before =
          "status: tells how a run stands, from its folder and from its services.\n\nUsage: status "
          "--run_dir=FOLDER\n\nFlags:\n",
      .flags = {{"run_dir", "FOLDER", "The run's folder.", UserPath(&run_dir)},
                {"patience", "SECONDS", "How long a service is waited for. Default 5.",
                 AtLeast<int64_t>(1, &patience)}},
      .after = "\nExit codes: 0; 1 after an error; 2 for a wrong flag, or where the folder is no run's.\n",
      .check = [&] {
        return run_dir.empty() ? absl::InvalidArgumentError("--run_dir is not given; it names the run's folder")
                               : absl::OkStatus();
      }};
  if (const auto code = ReadCommandLine(argc, argv, line)) return *code;
  return Finish("status", ShowStatus(run_dir, patience));
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) { return quartet::Main(argc, argv); }
