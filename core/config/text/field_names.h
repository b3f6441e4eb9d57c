// What a name that is no field's may have been meant to be.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"

namespace quartet {

// Of `path`, whose last part is no field of `message`: what it is here where it is a name with dots of another system
// (names_elsewhere.h); else "; it is a field of rollout, eval" where messages below `root`, none of which contains
// itself, have a field of that very last part; else "; did you mean 'temperature'?" where another system has such a
// name for one, or `message` one of nearly that name; else "".
std::string MeantField(absl::string_view path, const google::protobuf::Descriptor& message,
                       const google::protobuf::Descriptor& root);

}  // namespace quartet
