// Opens files that users name.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace quartet {

// A descriptor, for reading, of a regular file, for the caller to close. NOT_FOUND, PERMISSION_DENIED, UNAVAILABLE or,
// for what is no regular file, INVALID_ARGUMENT; all name the path and the operating system's reason.
absl::StatusOr<int> OpenRegularFile(const std::string& path);

}  // namespace quartet
