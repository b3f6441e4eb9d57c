// What a service says of its own build.
#pragma once

#include "proto/common.pb.h"

namespace quartet {

// Sets protocol_version, min_protocol_version and version.
void SayVersion(ServiceInfo* info);

}  // namespace quartet
