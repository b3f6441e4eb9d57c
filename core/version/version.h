// Which build this is.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace quartet {

// What --version prints, one line: "quartet 0.1.0, commit ..., for CPUs, wire protocols 5 to 6" (or "wire
// protocol 6") of a program of a bundle
// (deploy/); of one that was built otherwise without the commit.
std::string VersionText();

// Whether this program, an orchestrator, and `who`, whose --version is `version` and which speaks the versions `lowest`
// to `highest` of the protocol, have one in common; else FAILED_PRECONDITION with both and what to do.
absl::Status CheckProtocol(const std::string& who, const std::string& version, int32_t lowest, int32_t highest);

}  // namespace quartet
