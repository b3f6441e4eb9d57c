// Tells what memory a run will take, before anything starts: looks at what is asked for, and becomes the program that
// makes the plan, whose LibTorch takes longer to load than this one to find a mistake.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/logging.h"
#include "planner/plan_request.h"

namespace quartet {
namespace {

int Main(int argc, char** argv) {
  InitLogging(argv[0], "plan", -1);
  PlanRequest request;
  if (const auto code = ReadCommandLine(argc, argv, PlanCommandLine(&request))) return *code;
  if (const absl::Status asked = LoadPlanRequest(&request); !asked.ok()) return Finish("plan", asked);
  const std::string program = ExecutableFolder() + "/make_plan";
  execv(program.c_str(), argv);
  return Finish("plan", absl::InternalError(absl::StrCat("cannot run ", program, ": ", strerror(errno))));
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) { return quartet::Main(argc, argv); }
