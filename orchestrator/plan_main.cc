// Tells what memory a run will take, before anything starts: looks at what is asked for, and becomes the program that
// makes the plan, whose LibTorch takes longer to load than this one to find a mistake.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/files.h"
#include "core/base/logging.h"
#include "orchestrator/planner/plan_request.h"
#include "orchestrator/terminal/command_line.h"

namespace quartet {
namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "plan: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? 2 : 1;
}

int Main(int argc, char** argv) {
  InitLogging(argv[0], "plan", -1);
  const absl::StatusOr<CommandLine> flags = CommandLine::Parse(argc, argv, PlanFlags());
  if (!flags.ok()) return Fail(flags.status());
  if (flags->help()) {
    std::printf(
        "plan: tells what memory a run will take of each GPU and host, what would make it fit, or what it would fit "
        "on, and how long a step takes at least. Runs the engines' own code on LibTorch's meta device; of a model it "
        "reads config.json alone.\n\nUsage: plan --config=FILE [flags]\n\nFlags:\n%s\nExit codes: 0 where it fits; 3 "
        "where it does not; 2 for a wrong configuration.\n",
        CommandLine::Describe(PlanFlags()).c_str());
    return 0;
  }
  if (const absl::Status asked = ReadPlanRequest(*flags).status(); !asked.ok()) return Fail(asked);
  const std::string program = ExecutableFolder() + "/planner/make_plan";
  execv(program.c_str(), argv);
  return Fail(absl::InternalError(absl::StrCat("cannot run ", program, ": ", strerror(errno))));
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) { return quartet::Main(argc, argv); }
