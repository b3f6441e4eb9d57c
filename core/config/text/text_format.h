// Reads a message from a file in protobuf text format.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace quartet {

// Over what `message` has already. INVALID_ARGUMENT names the place in the file as path:line:column, counted from 1.
absl::Status ReadTextFormat(const std::string& path, google::protobuf::Message* message);

}  // namespace quartet
