// Sets fields of any message from texts "path.to.field=value".
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace quartet {

// One after the other. A list of values is written with commas between ("a,b"), or as in a file, in brackets
// (["a,b", "c"]): the first text that names it puts its values in the place of the message's, further ones add theirs.
// An empty value takes away what the message has there: a value, a list, or a group of fields. INVALID_ARGUMENT names
// the path, and the fields or values that would be allowed.
absl::Status SetFieldsFromTexts(const std::vector<std::string>& texts, google::protobuf::Message* message);

}  // namespace quartet
