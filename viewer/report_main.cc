// Writes the page of a run, from what is in its folder.
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/logging.h"
#include "core/base/status_macros.h"
#include "core/command_line/command_line.h"
#include "viewer/page/run_page.h"

namespace quartet {
namespace {

absl::Status WriteReport(const std::string& run_dir) {
  RunPage page(run_dir);
  QUARTET_RETURN_IF_ERROR(page.Read());
  if (page.is_empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--run_dir=", run_dir, " has no run.textproto: it is no run's folder"));
  }
  QUARTET_RETURN_IF_ERROR(page.Write());
  std::printf("%s/report.html\n", run_dir.c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  InitLogging(argv[0], "report", -1);
  std::string run_dir;
  const CommandLine line = {
      .program = "report",
      .before =
          R"(report: writes the page of a run, report.html in its folder, from what is there. A run writes its own while it goes on;
this is for folders of earlier builds, and for copies.

)",
      .flags = {{"run_dir", "FOLDER", "The run's folder.", UserPath(&run_dir)}},
      .check = [&] {
        return run_dir.empty() ? absl::InvalidArgumentError("--run_dir is not given; it names the run's folder")
                               : absl::OkStatus();
      }};
  if (const auto code = ReadCommandLine(argc, argv, line)) return *code;
  return Finish("report", WriteReport(run_dir));
}

}  // namespace
}  // namespace quartet

int main(int argc, char** argv) { return quartet::Main(argc, argv); }
