// Texts of errors, as gRPC can carry them.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace quartet {

// `text` without LibTorch's stack trace, bytes that are no UTF-8 replaced, and cut between two characters where it
// would not fit into gRPC's metadata (8 KiB, in which a byte beyond ASCII takes three); what is cut says so. Strings of
// protocol buffers need valid UTF-8 too.
std::string WireText(absl::string_view text);

}  // namespace quartet
