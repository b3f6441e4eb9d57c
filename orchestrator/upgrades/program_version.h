// Which build a program is of, without starting a service.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace quartet {

struct ProgramVersion {
  std::string text;  // what it prints for --version
  // Versions of the protocol that it speaks.
  int32_t min_protocol = 0, protocol = 0;
};

// Asks `path` --version. FAILED_PRECONDITION where it does not run on this host, or is none of Quartet's programs.
absl::StatusOr<ProgramVersion> ReadProgramVersion(const std::string& path);

}  // namespace quartet
