// Messages as fields with paths ("rollout.top_p").
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace quartet {

// The path of the first field that is set in `message` to what `other`, of the same type, does not have there; "" where
// there is none. Of a list, the list's.
std::string FirstDifference(const google::protobuf::Message& message, const google::protobuf::Message& other);

// Clears the field at `path`, which leads through single messages only.
void ClearPath(absl::string_view path, google::protobuf::Message* message);

}  // namespace quartet
