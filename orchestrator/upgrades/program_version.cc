#include "orchestrator/upgrades/program_version.h"

#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/service/process/child_process.h"
#include "orchestrator/terminal/continue_command.h"

namespace quartet {

absl::StatusOr<ProgramVersion> ReadProgramVersion(const std::string& path) {
  QUARTET_ASSIGN_OR_RETURN(const ShellResult said, RunInShell(absl::StrCat(ShellWord(path), " --version")));
  ProgramVersion version = {.text = std::string(absl::StripAsciiWhitespace(said.output))};
  // core/version: "quartet 0.2.0, ..., wire protocol 6", or "..., wire protocols 5 to 6".
  const size_t at = version.text.rfind("wire protocol");
  const char* const protocols = at == std::string::npos ? "" : version.text.c_str() + at;
  const bool one = sscanf(protocols, "wire protocol %d", &version.protocol) == 1;
  const bool two = sscanf(protocols, "wire protocols %d to %d", &version.min_protocol, &version.protocol) == 2;
  if (one) version.min_protocol = version.protocol;
  if (said.end.ok() && absl::StartsWith(version.text, "quartet ") && (one || two)) return version;
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is no program of Quartet's that runs on this host: ", said.end.Describe(), ", it says \"",
                   version.text.substr(0, 300), "\""));
}

}  // namespace quartet
