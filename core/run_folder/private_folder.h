// Folders whose files decide what a run does.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace quartet {

// Makes `path`, whose parent is there, a folder that this process's user alone reads and writes, whatever others could
// do there before. PERMISSION_DENIED where it is no folder, or another user's.
absl::Status MakePrivateFolder(const std::string& path);

}  // namespace quartet
