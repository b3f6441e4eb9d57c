#include "orchestrator/upgrades/program_version.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status_macros.h"
#include "core/service/process/child_process.h"
#include "core/terminal/continue_command.h"

namespace quartet {

absl::StatusOr<ProgramVersion> ReadProgramVersion(const std::string& path, const std::function<absl::Status()>& proceed,
                                                  absl::Duration timeout) {
  QUARTET_ASSIGN_OR_RETURN(const ShellResult said,
                           RunInShell(absl::StrCat(ShellWord(path), " --version"), timeout, proceed));
  ProgramVersion version = {.text = std::string(absl::StripAsciiWhitespace(said.output))};
  // core/version: "quartet 0.2.0, ..., wire protocol 6", or "..., wire protocols 5 to 6".
  const size_t at = version.text.rfind("wire protocol");
  const std::vector<std::string> words =
      absl::StrSplit(version.text.substr(std::min(at, version.text.size())), absl::ByAnyChar(" \n"));
  const bool one = words.size() >= 3 && words[1] == "protocol" && absl::SimpleAtoi(words[2], &version.protocol);
  const bool two = words.size() >= 5 && words[1] == "protocols" && words[3] == "to" &&
                   absl::SimpleAtoi(words[2], &version.min_protocol) && absl::SimpleAtoi(words[4], &version.protocol);
  if (one) version.min_protocol = version.protocol;
  if (said.end.ok() && absl::StartsWith(version.text, "quartet ") && (one || two)) return version;
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is no program of Quartet's that runs on this host: ", said.end.Describe(), ", it says \"",
                   version.text.substr(0, 300), "\""));
}

}  // namespace quartet
