#include "core/version/version.h"

#include <filesystem>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/files/files.h"
#include "core/version/release.h"
#include "proto/protocol_version.h"

namespace quartet {

std::string VersionText() {
  // Programs of a bundle are one or two folders below it.
  std::filesystem::path folder = ExecutableFolder();
  for (int level = 0; level < 2; ++level) {
    folder = folder.parent_path();
    std::error_code ignored;
    if (!std::filesystem::exists(folder / "quartet", ignored)) continue;
    const absl::StatusOr<std::string> text = ReadFile((folder / "version.txt").string());
    if (text.ok()) return std::string(absl::StripAsciiWhitespace(*text));
  }
  return absl::StrCat("quartet ", kQuartetVersion, ", built from its sources, wire protocol",
                      kMinProtocolVersion < kProtocolVersion ? absl::StrCat("s ", kMinProtocolVersion, " to ") : " ",
                      kProtocolVersion);
}

absl::Status CheckProtocol(const std::string& who, const std::string& version, int32_t lowest, int32_t highest) {
  if (highest >= kMinProtocolVersion && lowest <= kProtocolVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      who, " (", version.empty() ? "of an unknown version" : version.c_str(), ") speaks protocol versions ", lowest,
      " to ", highest, "; this orchestrator (", VersionText(), ") speaks ", kMinProtocolVersion, " to ",
      kProtocolVersion, ". Take builds of one version, or of two that follow each other"));
}

}  // namespace quartet
