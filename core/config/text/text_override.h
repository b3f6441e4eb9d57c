// Sets a field of any message from "path.to.field=value".
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace quartet {

// A list of values gets those of the text in the place of its own: with commas between ("a,b"), or as in a file, in
// brackets (["a,b", "c"]); none where it is empty. INVALID_ARGUMENT names the path, and the fields or values that would
// be allowed.
absl::Status SetFieldFromText(absl::string_view override_text, google::protobuf::Message* message);

}  // namespace quartet
