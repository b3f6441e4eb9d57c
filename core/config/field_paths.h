// Messages as fields with paths ("rollout.top_p").
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace quartet {

// The path of the first field that is set at `path`, or below it where it is a message; "" where there is none, of
// a list of messages also where all are empty. The path leads through single messages only.
std::string FirstSet(absl::string_view path, const google::protobuf::Message& message);

// Whether messages of `type` can have a field at `path`, as FlatFields names it.
bool IsFieldPath(absl::string_view path, const google::protobuf::Descriptor& type);

// Clears the field at `path`, which leads through single messages only.
void ClearPath(absl::string_view path, google::protobuf::Message* message);

// Every value that is set, in text format, by its path; elements of lists by their place ("reward.source.0.rule").
std::map<std::string, std::string> FlatFields(const google::protobuf::Message& message);

}  // namespace quartet
