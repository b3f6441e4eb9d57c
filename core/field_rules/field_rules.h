// Messages by the rules of their fields (proto/field_rule.proto).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace quartet {

// Sets every field that has a default and is not set, also in the messages below that are there. A text is set where it
// is not empty.
void FillRules(google::protobuf::Message* message);

// INVALID_ARGUMENT names the first field that is set to what its rule does not allow, the value, and what is allowed.
// `path` is where `message` stands: "", or "rollout.".
absl::Status CheckRules(const std::string& path, const google::protobuf::Message& message);

// How such an error reads.
absl::Status NotAllowed(absl::string_view field, absl::string_view value, absl::string_view allowed);

}  // namespace quartet
