// What a name that is no field's may have been meant to be.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"

namespace quartet {

// "; it is a field of rollout, eval" where messages below `root`, none of which contains itself, have a field of that
// very name; else "; did you mean 'temperature'?" where `message` has one of nearly that name, or other
// systems have a name for one; else "".
std::string MeantField(absl::string_view name, const google::protobuf::Descriptor& message,
                       const google::protobuf::Descriptor& root);

}  // namespace quartet
