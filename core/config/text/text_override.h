// Sets a field of any message from "path.to.field=value".
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace quartet {

// INVALID_ARGUMENT names the path, and the fields or values that would be allowed.
absl::Status SetFieldFromText(absl::string_view override_text, google::protobuf::Message* message);

}  // namespace quartet
