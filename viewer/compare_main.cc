// Puts several runs on one page.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/command_line/command_line.h"
#include "viewer/page/compare_page.h"

namespace quartet {
namespace {

absl::Status WriteComparison(std::vector<std::string> run_dirs, const std::string& out) {
  for (std::string& run_dir : run_dirs) run_dir = ResolveUserPath(run_dir);
  QUARTET_ASSIGN_OR_RETURN(const std::string page, ComparePage(run_dirs));
  QUARTET_RETURN_IF_ERROR(AtomicWriteFile(out, page));
  std::printf("%s\n", out.c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  InitLogging(argv[0], "compare", -1);
  std::vector<std::string> run_dirs;
  std::string out = ResolveUserPath("comparison.html");
  const CommandLine line = {
      .program = "compare",
      .before =
          "compare: puts runs on one page, their curves over each other, and what differs in their configurations.\n\n"
          "Usage: compare --run_dir=A --run_dir=B [flags]\n\nFlags:\n",
      .flags = {{"run_dir", "FOLDER", "The folder of a run. For each run once more.", Texts(&run_dirs)},
                {"out", "FILE", "The page. Default comparison.html.", UserPath(&out)}},
      .after =
          "\nExit codes: 0; 1 where the page cannot be written; 2 for a wrong flag, or where a folder is no run's.\n",
      .check = [&] {
        return run_dirs.size() < 2 ? absl::InvalidArgumentError("--run_dir is to be given for each of two runs or more")
                                   : absl::OkStatus();
      }};
  if (const auto code = ReadCommandLine(argc, argv, line)) return *code;
  return Finish("compare", WriteComparison(run_dirs, out));
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) { return quartet::Main(argc, argv); }
