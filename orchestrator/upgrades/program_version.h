// Which build a program is of, without starting a service.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace quartet {

struct ProgramVersion {
  std::string text;  // what it prints for --version
  // Versions of the protocol that it speaks.
  int32_t min_protocol = 0, protocol = 0;
};

// Asks `path` --version. FAILED_PRECONDITION where it does not run on this host, or is none of Quartet's programs;
// DEADLINE_EXCEEDED where it has not answered after `timeout`, which leaves room for libraries that come from afar.
// `proceed` is asked again and again; its error ends the asking.
absl::StatusOr<ProgramVersion> ReadProgramVersion(const std::string& path, const std::function<absl::Status()>& proceed,
                                                  absl::Duration timeout = absl::Seconds(30));

}  // namespace quartet
