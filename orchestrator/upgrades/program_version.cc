#include "orchestrator/upgrades/program_version.h"

#include <cerrno>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/service/process/child_process.h"
#include "orchestrator/terminal/continue_command.h"

namespace quartet {

absl::StatusOr<ProgramVersion> ReadProgramVersion(const std::string& path) {
  std::FILE* const pipe = popen(absl::StrCat(ShellWord(path), " --version 2>&1").c_str(), "r");
  if (pipe == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("cannot start ", path));
  std::string output;
  char part[512];
  while (const size_t size = fread(part, 1, sizeof(part), pipe)) output.append(part, size);
  const ExitState end = ExitState::OfWait(pclose(pipe));
  ProgramVersion version = {.text = std::string(absl::StripAsciiWhitespace(output))};
  // core/version: "quartet 0.2.0, ..., wire protocol 6", or "..., wire protocols 5 to 6".
  const size_t at = version.text.rfind("wire protocol");
  const char* const protocols = at == std::string::npos ? "" : version.text.c_str() + at;
  const bool one = sscanf(protocols, "wire protocol %d", &version.protocol) == 1;
  const bool two = sscanf(protocols, "wire protocols %d to %d", &version.min_protocol, &version.protocol) == 2;
  if (one) version.min_protocol = version.protocol;
  if (end.ok() && absl::StartsWith(version.text, "quartet ") && (one || two)) return version;
  return absl::FailedPreconditionError(absl::StrCat(path, " is no program of Quartet's that runs on this host: ",
                                                    end.Describe(), ", it says \"", version.text.substr(0, 300), "\""));
}

}  // namespace quartet
