// Reads a message from a file in protobuf text format.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

namespace quartet {

// The file's text, and of `text`, which is that of `path`, the message, over what `message` has already.
// INVALID_ARGUMENT names the place in the file as path:line:column, counted from 1.
absl::StatusOr<std::string> ReadConfigText(const std::string& path);
absl::Status ParseTextFormat(const std::string& path, const std::string& text, google::protobuf::Message* message);

// Without the fields that `message` does not have, which are passed over.
absl::Status ReadKnownFields(const std::string& path, google::protobuf::Message* message);

}  // namespace quartet
